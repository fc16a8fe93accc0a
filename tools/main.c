/*
 * The `sluice` command: finds the verb, and prints what is made from the tables (help, man page, completion lists).
 *
 * Called as mount.sluice (by mount(8) for fstab lines of type "sluice") it takes that helper's arguments instead.
 */
#include "fs/config.h"
#include "fs/program.h"
#include "tools/cmd.h"

#include <stdio.h>
#include <string.h>

#define CMD(name, usage, help) {#name, usage, help, cmd_##name},
#define OPT(verb, name, letter, arg, help)
const struct cmd cmd_table[] = {
#include "tools/cmds.def"
    {NULL, NULL, NULL, NULL}};
#undef CMD
#undef OPT

#define CMD(name, usage, help)
#define OPT(verb, name, letter, arg, help) {#verb, name, letter, arg, help},
const struct cmd_opt cmd_opt_table[] = {
#include "tools/cmds.def"
    {NULL, NULL, 0, NULL, NULL}};
#undef CMD
#undef OPT

const struct cmd *cmd_find(const char *name)
{
    for (const struct cmd *c = cmd_table; c->name; c++)
        if (strcmp(c->name, name) == 0)
            return c;
    return NULL;
}

const char *cmd_options_of(const char *verb)
{
    return strcmp(verb, "prefetch") == 0 ? "warmup" : verb;
}

/* "-p, --parallel N" */
static char *opt_heading(const struct cmd_opt *o)
{
    bool optional = o->arg && o->arg[0] == '[';
    g_autofree char *letter = o->letter ? g_strdup_printf("-%c, ", o->letter) : g_strdup("");
    return g_strdup_printf("%s--%s%s%s", letter, o->name, o->arg && !optional ? " " : "", o->arg ? o->arg : "");
}

void cmd_print_help(const struct cmd *cmd)
{
    printf("sluice %s %s\n  %s\n", cmd->name, cmd->usage, cmd->help);
    const char *verb = cmd_options_of(cmd->name);
    bool first = true;
    for (const struct cmd_opt *o = cmd_opt_table; o->verb; o++) {
        if (strcmp(o->verb, verb) != 0)
            continue;
        g_autofree char *head = opt_heading(o);
        printf("%s  %-28s %s\n", first ? "\n" : "", head, o->help);
        first = false;
    }
    if (strcmp(verb, "mount") == 0) {
        printf("\n  %-36s %s\n\n", "--config NAME|FILE", "read options from /etc/sluice/NAME.conf or FILE first");
        config_print_help(stdout);
    }
}

void cmd_print_usage(void)
{
    printf("sluice VERB ...      a cache in front of an S3-compatible store, as a filesystem\n\n");
    for (const struct cmd *c = cmd_table; c->name; c++)
        printf("  %-10s %s\n", c->name, c->help);
    printf(
        "\n'sluice VERB --help' tells more. Exit codes: 0 done, 1 failed, 2 usage, 3 time ran out with work left.\n");
}

/* ---- lists and man page ---- */

static void list_options(const char *verb)
{
    for (const struct cmd_opt *o = cmd_opt_table; o->verb; o++)
        if (strcmp(o->verb, cmd_options_of(verb)) == 0)
            printf("--%s\n", o->name);
    if (strcmp(verb, "mount") == 0) {
        printf("--config\n");
        config_print_names(stdout);
    }
    printf("--help\n");
}

/* Text with what roff would take for itself escaped. */
static void roff_text(const char *text)
{
    for (const char *p = text; *p; p++) {
        if (*p == '\\' || *p == '-')
            putchar('\\');
        putchar(*p == '\\' ? 'e' : *p);
    }
}

static void roff_item(const char *head, const char *arg, const char *help, const char *def)
{
    printf(".TP\n.B ");
    roff_text(head);
    if (arg) {
        putchar(' ');
        roff_text(arg);
    }
    putchar('\n');
    roff_text(help);
    if (def && *def) {
        printf(" [");
        roff_text(def);
        putchar(']');
    }
    putchar('\n');
}

static void man_verbs(void)
{
    printf(".SH VERBS\n");
    for (const struct cmd *c = cmd_table; c->name; c++) {
        printf(".SS ");
        roff_text(c->name);
        putchar(' ');
        roff_text(c->usage);
        putchar('\n');
        roff_text(c->help);
        putchar('\n');
        for (const struct cmd_opt *o = cmd_opt_table; o->verb; o++) {
            if (strcmp(o->verb, c->name) != 0)
                continue;
            g_autofree char *head = opt_heading(o);
            roff_item(head, NULL, o->help, NULL);
        }
    }
}

static void man_mount_options(void)
{
    struct config_option o;
    const char *section = "";
    printf(
        ".SH OPTIONS OF MOUNT\nAs \\-\\-NAME VALUE, as NAME=VALUE in a list after \\-o (a comma inside a value is written \\e,), or as\n"
        "NAME = VALUE lines of a file given with \\-\\-config. The command line overrides the file.\n");
    for (unsigned i = 0; config_option_at(i, &o); i++) {
        if (strcmp(section, o.section) != 0)
            printf(".SS %s\n", o.section);
        section = o.section;
        g_autoptr(GString) words = g_string_new(NULL);
        for (unsigned k = 0; o.choices && o.choices[k]; k++)
            g_string_append_printf(words, "%s%s", k ? "|" : "", o.choices[k]);
        g_autofree char *head = g_strdup_printf("--%s", o.name);
        roff_item(head, o.choices ? words->str : o.arg, o.help, o.def);
    }
}

static void dump_man(void)
{
    printf(".TH SLUICE 1 \"\" \"sluice %s\" \"User Commands\"\n", SLUICE_VERSION);
    printf(".SH NAME\nsluice \\- a local cache in front of an S3\\-compatible store, as a filesystem\n");
    printf(".SH SYNOPSIS\n.B sluice\n.I VERB\n[OPTION]... [ARGUMENT]...\n");
    printf(
        ".SH DESCRIPTION\nObjects appear as files: one object per file, nothing added. Reads come from files on the local disk once they\n"
        "were fetched; writes go to the local disk and from there to the store. A daemon serves each mount; the other verbs talk to it.\n");
    man_verbs();
    man_mount_options();
    printf(
        ".SH CREDENTIALS\nKeys are never options. They are read from the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY,\n"
        "AWS_SESSION_TOKEN) or from the AWS credentials and config files (see \\-\\-profile).\n");
    printf(".SH EXIT STATUS\n0 done, 1 failed, 2 usage, 3 time ran out with work left.\n");
    printf(
        ".SH FILES\n.TP\n.I /etc/sluice/NAME.conf\noptions of a mount, for \\-\\-config NAME and sluice@NAME.service\n"
        ".TP\n.I /run/sluice, $XDG_RUNTIME_DIR/sluice\ncontrol sockets\n.TP\n.I /var/log/sluice, ~/.cache/sluice\nlogs of daemons in the background\n");
}

/* mount.sluice SOURCE DIR [-sfnv] [-o LIST] [-t TYPE]: what mount(8) calls. */
static int mount_helper(int argc, char **argv)
{
    g_autoptr(GPtrArray) out = g_ptr_array_new();
    static char verb[] = "mount", dash_o[] = "-o";
    bool fake = false;
    g_ptr_array_add(out, verb);
    for (int i = 1; i < argc; i++) {
        if (argv[i][0] != '-') {
            g_ptr_array_add(out, argv[i]);
        } else if (strcmp(argv[i], "-o") == 0 && i + 1 < argc) {
            g_ptr_array_add(out, dash_o);
            g_ptr_array_add(out, argv[++i]);
        } else if (strcmp(argv[i], "-t") == 0 || strcmp(argv[i], "-N") == 0) {
            i++;
        } else if (strspn(argv[i] + 1, "sfnvr") == strlen(argv[i] + 1)) {
            fake = fake || strchr(argv[i], 'f');
            if (strchr(argv[i], 'r')) {
                static char ro[] = "--read-only";
                g_ptr_array_add(out, ro);
            }
        } else {
            complain("usage: mount.sluice SOURCE DIR [-sfnvr] [-o LIST]");
            return EXIT_USAGE;
        }
    }
    if (fake)
        return EXIT_DONE;
    guint n = out->len;
    g_ptr_array_add(out, NULL);
    return cmd_mount((int)n, (char **)out->pdata);
}

int main(int argc, char **argv)
{
    g_autofree char *self = g_path_get_basename(argv[0] ? argv[0] : "sluice");
    if (strcmp(self, "mount.sluice") == 0)
        return mount_helper(argc, argv);
    const char *verb = argc > 1 ? argv[1] : "";
    if (strcmp(verb, "--worker") == 0) {
        return mount_worker(argc - 1, argv + 1);
    } else if (strcmp(verb, "--worker-formats") == 0) {
        g_autofree char *formats = program_formats();
        puts(formats);
    } else if (strcmp(verb, "--list-commands") == 0) {
        for (const struct cmd *c = cmd_table; c->name; c++)
            puts(c->name);
    } else if (strcmp(verb, "--list-options") == 0 && argc > 2) {
        list_options(argv[2]);
    } else if (strcmp(verb, "--dump-man") == 0) {
        dump_man();
    } else if (strcmp(verb, "--version") == 0) {
        return cmd_version(argc - 1, argv + 1);
    } else if (strcmp(verb, "--help") == 0 || strcmp(verb, "-h") == 0 || strcmp(verb, "help") == 0) {
        const struct cmd *c = argc > 2 ? cmd_find(argv[2]) : NULL;
        if (c)
            cmd_print_help(c);
        else
            cmd_print_usage();
    } else {
        const struct cmd *c = cmd_find(verb);
        if (c)
            return c->run(argc - 1, argv + 1);
        complain(*verb ? "there is no verb '%s'; 'sluice --help' lists all"
                       : "a verb is missing%s; 'sluice --help' lists all",
                 verb);
        return EXIT_USAGE;
    }
    return EXIT_DONE;
}
