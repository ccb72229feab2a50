/* A stand-in for the engine's image: it takes the command lines of `strata serve` and `strata fetch`, answers the probes, and ends as the real
   one ends, so that the operator can be tested without four gigabytes of torch.

   The source's last part says how it behaves:
     absent   the last words of a source that is not there, exit 2
     wordless exit 1 after a line on stderr, without last words
     slow     alive, but never ready: it has downloaded 400 of 1000 MiB
     hungry   takes memory until it is killed
     else     ready at once
   Of each request it says in /metrics that it was answered with 100 tokens in a second, and had to wait 150 ms.
   Where huge pages are mounted it maps and touches HUGE_BYTES of them first.                                        */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static void end(int signal) {
    (void)signal;
    _exit(0);
}

static void die(const char *words) {
    const char *path = getenv("STRATA_TERMINATION_LOG");
    FILE *file = path ? fopen(path, "w") : NULL;
    if (file) {
        fputs(words, file);
        fclose(file);
    }
    exit(2);
}

#define HUGE_BYTES (16u << 20)

static void map_huge_pages(void) {
    int file = open("/dev/hugepages/strata", O_CREAT | O_RDWR, 0600);
    if (file < 0 && errno == ENOENT) return; /* none asked for */
    void *pages = MAP_FAILED;
    if (file >= 0 && ftruncate(file, HUGE_BYTES) == 0) pages = mmap(NULL, HUGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (pages == MAP_FAILED) die(strerror(errno));
    memset(pages, 1, HUGE_BYTES);
}

int main(int argc, char **argv) {
    signal(SIGTERM, end); /* process 1 gets no default action */
    int fetches = argc >= 3 && strcmp(argv[1], "fetch") == 0; /* as before a pod that serves is stopped */
    if (argc < 3 || (!fetches && strcmp(argv[1], "serve") != 0)) die("usage: strata serve|fetch SOURCE [--FLAG=VALUE ...]");
    const char *kind = strrchr(argv[2], '/') ? strrchr(argv[2], '/') + 1 : argv[2];
    int slow = strcmp(kind, "slow") == 0;
    if (strcmp(kind, "absent") == 0) die("there is no built-in model 'absent'; there are: smollm2-135m");
    if (fetches) return 0;
    if (strcmp(kind, "wordless") == 0) {
        fprintf(stderr, "Traceback: something unforeseen\n");
        return 1;
    }
    if (strcmp(kind, "hungry") == 0)
        for (;;) memset(malloc(1 << 24), 1, 1 << 24);

    map_huge_pages();
    int one = 1, listener = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(8000)};
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 16)) die("port 8000 is in use");
    for (long requests = 0;; requests++) {
        char request[2048] = {0};
        int client = accept(listener, NULL, NULL);
        if (client < 0) continue;
        if (read(client, request, sizeof request - 1) > 0) {
            int ready = !slow || strncmp(request, "GET /ready", 10) != 0;
            char body[512] = "ok\n";
            if (!ready)
                strcpy(body, "{\"status\": \"loading\", \"phase\": \"download\", \"bytes_done\": 419430400, \"bytes_total\": 1048576000}\n");
            else if (strncmp(request, "GET /metrics", 12) == 0)
                snprintf(body, sizeof body,
                         "strata_generation_tokens_total %ld\nstrata_step_seconds_total %ld\n"
                         "strata_time_to_first_token_seconds_bucket{le=\"0.1\"} 0\n"
                         "strata_time_to_first_token_seconds_bucket{le=\"0.2\"} %ld\n"
                         "strata_time_to_first_token_seconds_bucket{le=\"+Inf\"} %ld\n",
                         100 * requests, requests, requests, requests);
            dprintf(client, "HTTP/1.1 %s\r\nContent-Length: %zu\r\nConnection: close\r\n\r\n%s",
                    ready ? "200 OK" : "503 Service Unavailable", strlen(body), body);
        }
        close(client);
    }
}
