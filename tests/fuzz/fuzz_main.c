/* Runs a target once over each file named, or in each folder named: the corpus as a unit test, without libFuzzer. */
#include "fuzz.h"

#include <stdio.h>

static unsigned n_runs;

static void run_file(const char *path)
{
    g_autofree char *text = NULL;
    gsize len = 0;
    g_autoptr(GError) err = NULL;
    if (!g_file_get_contents(path, &text, &len, &err))
        g_error("%s", err->message);
    g_autofree uint8_t *exact =
        g_memdup2(text, len); /* without the NUL behind it, so that reading over the end is seen */
    (void)LLVMFuzzerTestOneInput(exact, len);
    n_runs++;
}

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        GDir *dir = g_dir_open(argv[i], 0, NULL);
        if (!dir)
            run_file(argv[i]);
        for (const char *name = NULL; dir && (name = g_dir_read_name(dir));) {
            g_autofree char *path = g_build_filename(argv[i], name, NULL);
            run_file(path);
        }
        g_clear_pointer(&dir, g_dir_close);
    }
    printf("%u inputs\n", n_runs);
    return n_runs > 0 ? 0 : 1;
}
