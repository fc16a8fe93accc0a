/*
 * delay.c - bench_delay PORT TARGET_PORT MS: a TCP relay on loopback that holds everything a client sends for MS milliseconds, as a link
 * with that round trip would, and hands what the server sends on at once, by splice. Prints "ready" when it listens; ends with its parent.
 *
 * One thread. What clients sent waits in a queue per connection; each chunk carries the time when it is due, so that the delay does
 * not limit throughput as long as MS milliseconds of it fit into QUEUE_MAX.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define CHUNK     (256u << 10)
#define QUEUE_MAX (64u << 20) /* per connection */
#define PIPE_SIZE (1 << 20)
#define N_EVENTS  64

struct chunk {
    struct chunk *next;
    uint64_t due_ns;
    size_t len, sent;
    uint8_t data[];
};

struct end { /* what epoll points at */
    struct conn *conn;
    int fd;
    uint32_t interest;
};

struct conn {
    struct conn *next;
    struct end client, server;
    struct chunk *head, **tail; /* from client to server */
    size_t queued;
    bool blocked; /* the server takes no more for now */
    int pipe[2];  /* from server to client */
    size_t piped;
    bool client_eof, server_eof, broken;
    bool server_shut, client_shut;
};

static struct conn *conns;
static uint64_t delay_ns;
static int epfd;

static uint64_t now_ns(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void die(const char *what)
{
    fprintf(stderr, "bench_delay: %s: %s\n", what, strerror(errno));
    exit(1);
}

static int tcp_socket(void)
{
    int one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) < 0)
        die("socket");
    return fd;
}

static struct sockaddr_in loopback(int port)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return a;
}

static void want(struct end *e, uint32_t interest)
{
    struct epoll_event ev = {.events = interest, .data.ptr = e};
    if (e->interest == interest)
        return;
    e->interest = interest;
    (void)epoll_ctl(epfd, EPOLL_CTL_MOD, e->fd, &ev);
}

static bool again(struct conn *c)
{
    if (errno == EAGAIN || errno == EINTR)
        return true;
    c->broken = true;
    return false;
}

/* ---- client to server ---- */

static void take(struct conn *c)
{
    while (!c->client_eof && c->queued < QUEUE_MAX) {
        struct chunk *k = malloc(sizeof(*k) + CHUNK);
        if (!k)
            die("out of memory");
        ssize_t n = recv(c->client.fd, k->data, CHUNK, MSG_DONTWAIT);
        if (n <= 0) {
            free(k);
            if (n == 0)
                c->client_eof = true;
            else
                (void)again(c);
            return;
        }
        *k = (struct chunk){.due_ns = now_ns() + delay_ns, .len = (size_t)n};
        *c->tail = k;
        c->tail = &k->next;
        c->queued += k->len;
        if (k->len < CHUNK)
            return;
    }
}

static void give(struct conn *c, uint64_t now)
{
    c->blocked = false;
    while (c->head && c->head->due_ns <= now) {
        struct chunk *k = c->head;
        ssize_t n = send(c->server.fd, k->data + k->sent, k->len - k->sent, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0) {
            c->blocked = again(c);
            return;
        }
        k->sent += (size_t)n;
        if (k->sent < k->len)
            continue;
        c->queued -= k->len;
        c->head = k->next;
        if (!c->head)
            c->tail = &c->head;
        free(k);
    }
    if (!c->head && c->client_eof && !c->server_shut) {
        (void)shutdown(c->server.fd, SHUT_WR);
        c->server_shut = true;
    }
}

/* ---- server to client ---- */

static void pass(struct conn *c)
{
    for (;;) {
        if (c->piped == 0 && !c->server_eof) {
            ssize_t n = splice(c->server.fd, NULL, c->pipe[1], NULL, PIPE_SIZE, SPLICE_F_MOVE | SPLICE_F_NONBLOCK);
            if (n < 0 && again(c))
                return;
            if (n <= 0)
                c->server_eof = true;
            else
                c->piped = (size_t)n;
        }
        if (c->piped == 0)
            break;
        ssize_t n = splice(c->pipe[0], NULL, c->client.fd, NULL, c->piped, SPLICE_F_MOVE | SPLICE_F_NONBLOCK);
        if (n <= 0) {
            (void)again(c);
            return;
        }
        c->piped -= (size_t)n;
    }
    if (c->server_eof && !c->client_shut) {
        (void)shutdown(c->client.fd, SHUT_WR);
        c->client_shut = true;
    }
}

/* ---- connections ---- */

static void set_interest(struct conn *c)
{
    want(&c->client, (!c->client_eof && c->queued < QUEUE_MAX ? EPOLLIN : 0u) | (c->piped ? EPOLLOUT : 0u));
    want(&c->server, (!c->server_eof && c->piped == 0 ? EPOLLIN : 0u) | (c->blocked ? EPOLLOUT : 0u));
}

static void add_end(struct conn *c, struct end *e, int fd)
{
    int one = 1;
    *e = (struct end){.conn = c, .fd = fd};
    struct epoll_event ev = {.events = 0, .data.ptr = e};
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    if (fcntl(fd, F_SETFL, O_NONBLOCK) < 0 || epoll_ctl(epfd, EPOLL_CTL_ADD, fd, &ev) < 0)
        die("epoll");
}

static void connection_new(int client, int target)
{
    struct sockaddr_in a = loopback(target);
    int server = tcp_socket();
    struct conn *c = calloc(1, sizeof(*c));
    if (!c || connect(server, (struct sockaddr *)&a, sizeof(a)) < 0 || pipe2(c->pipe, O_NONBLOCK | O_CLOEXEC) < 0) {
        (void)close(client);
        (void)close(server);
        free(c);
        return;
    }
    (void)fcntl(c->pipe[0], F_SETPIPE_SZ, PIPE_SIZE);
    c->tail = &c->head;
    add_end(c, &c->client, client);
    add_end(c, &c->server, server);
    c->next = conns;
    conns = c;
    set_interest(c);
}

static void connection_free(struct conn *c)
{
    while (c->head) {
        struct chunk *k = c->head;
        c->head = k->next;
        free(k);
    }
    (void)close(c->client.fd);
    (void)close(c->server.fd);
    (void)close(c->pipe[0]);
    (void)close(c->pipe[1]);
    free(c);
}

/* Sends what is due, drops what is done; returns nanoseconds to the next due chunk, -1 if there is none. */
static int64_t serve(void)
{
    uint64_t now = now_ns();
    int64_t next = -1;
    for (struct conn **p = &conns; *p;) {
        struct conn *c = *p;
        if (!c->broken && !c->blocked)
            give(c, now);
        if (c->broken || (c->client_shut && c->server_shut)) {
            *p = c->next;
            connection_free(c);
            continue;
        }
        set_interest(c);
        if (c->head && !c->blocked) {
            int64_t left = c->head->due_ns > now ? (int64_t)(c->head->due_ns - now) : 0;
            next = next < 0 || left < next ? left : next;
        }
        p = &c->next;
    }
    return next;
}

static void on_event(struct end *e, uint32_t events)
{
    struct conn *c = e->conn;
    bool in = (events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0, out = (events & EPOLLOUT) != 0;
    if (e == &c->client && (events & EPOLLERR))
        c->broken = true;
    if (e == &c->client ? in : out) {
        if (e == &c->client)
            take(c);
        else
            c->blocked = false; /* serve() sends */
    }
    if (e == &c->client ? out : in)
        pass(c);
}

int main(int argc, char **argv)
{
    if (argc != 4) {
        fputs("usage: bench_delay PORT TARGET_PORT MS\n", stderr);
        return 2;
    }
    (void)prctl(PR_SET_PDEATHSIG, SIGTERM);
    (void)signal(SIGPIPE, SIG_IGN);
    struct sockaddr_in a = loopback(atoi(argv[1]));
    int listener = tcp_socket();
    if (bind(listener, (struct sockaddr *)&a, sizeof(a)) < 0 || listen(listener, 256) < 0)
        die("listen");
    delay_ns = (uint64_t)atoi(argv[3]) * 1000000u;
    epfd = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event ev = {.events = EPOLLIN}, events[N_EVENTS];
    if (epfd < 0 || epoll_ctl(epfd, EPOLL_CTL_ADD, listener, &ev) < 0)
        die("epoll");
    puts("ready");
    (void)fflush(stdout);
    for (;;) {
        int64_t left = serve();
        struct timespec t = {.tv_sec = left / 1000000000, .tv_nsec = left % 1000000000};
        int n = epoll_pwait2(epfd, events, N_EVENTS, left < 0 ? NULL : &t, NULL);
        for (int i = 0; i < n; i++) {
            if (events[i].data.ptr)
                on_event(events[i].data.ptr, events[i].events);
            else
                connection_new(accept4(listener, NULL, NULL, SOCK_CLOEXEC), atoi(argv[2]));
        }
    }
}
