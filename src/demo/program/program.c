/* The program that `gpurec demo` records: a small inference, with three faults
 * put in for the recorder to find: 8 MiB that are never freed, one failed call that it
 * survives, and a needless cudaDeviceSynchronize after every layer. */
#define _GNU_SOURCE
#include "kernels.h"

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { WIDTH = 256, LAYERS = 8, MATRIX = WIDTH * WIDTH, HELD = 8 << 20, MOST_THREADS = 64 };

static struct {
    long loops, threads, burst, sleep_ms, exit_code;
    int fork, crash, needless;
} flags = {.loops = 90, .threads = 1};

static float *weights[LAYERS], *gain;

static void must(cudaError error, const char *what)
{
    if (!error)
        return;
    fprintf(stderr, "demo program: %s failed: %s\n", what, cudaGetErrorString(error));
    exit(3);
}
#define MUST(call) must(call, #call)

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static void load_weights(void)
{
    float *host = malloc(MATRIX * sizeof *host);
    if (!host)
        must(2, "malloc");
    uint32_t random = 1;
    for (int layer = 0; layer < LAYERS; layer++) {
        for (int i = 0; i < MATRIX; i++) {
            random = random * 1664525u + 1013904223u;
            host[i] = (float)((int)(random >> 16) - 32768) / 524288.0f;
        }
        MUST(cudaMalloc(&weights[layer], MATRIX * sizeof *host));
        MUST(cudaMemcpy(weights[layer], host, MATRIX * sizeof *host, TO_DEVICE));
    }
    free(host);
    /* Managed memory is written by the host and read by the kernels. */
    MUST(cudaMallocManaged(&gain, WIDTH * sizeof *gain, 1));
    for (int i = 0; i < WIDTH; i++)
        gain[i] = 1.0f + (float)i / WIDTH;
}

static void run_layers(float *x, float *y, cudaStream stream)
{
    for (int layer = 0; layer < LAYERS; layer++) {
        LAUNCH(stream, 1, WIDTH, _Z9layernormPfPKfi, x, gain, WIDTH);
        LAUNCH(stream, WIDTH / 4, 128, _Z6matmulPKfS0_Pfi, weights[layer], x, y, WIDTH);
        LAUNCH(stream, 1, WIDTH, _Z4geluILi4EEvPfi, y, WIDTH);
        LAUNCH(stream, 1, WIDTH, _Z12add_residualPfPKfi, x, y, WIDTH);
        /* The needless one: the stream keeps the order by itself. */
        MUST(cudaDeviceSynchronize());
    }
    MUST(cudaGetLastError());
}

struct worker {
    pthread_t thread;
    uint64_t checksum;
    float gpu_ms;
};

static uint64_t hash(uint64_t so_far, const void *data, size_t size)
{
    const unsigned char *bytes = data;
    for (size_t i = 0; i < size; i++)
        so_far = (so_far ^ bytes[i]) * 0x100000001b3ull;
    return so_far;
}

/* The last step of each token, softmax and the copy back, as a graph. */
static cudaGraphExec capture_last_step(float *x, float *host, cudaStream stream)
{
    cudaGraph graph;
    cudaGraphExec exec;
    MUST(cudaStreamBeginCapture(stream, 1));
    LAUNCH(stream, 1, WIDTH, _Z7softmaxPfi, x, WIDTH);
    MUST(cudaMemcpyAsync(host, x, WIDTH * sizeof *host, TO_HOST, stream));
    MUST(cudaStreamEndCapture(stream, &graph));
    MUST(cudaGraphInstantiate(&exec, graph, 0));
    MUST(cudaGraphDestroy(graph));
    return exec;
}

/* All tokens of one thread, on streams and buffers of its own. */
static void *infer(void *argument)
{
    struct worker *worker = argument;
    cudaStream stream, copies;
    cudaEvent start, end, copied;
    float *x, *in, *out;
    size_t size = WIDTH * sizeof *x;
    MUST(cudaSetDevice(0));
    MUST(cudaStreamCreateWithFlags(&stream, 1));
    MUST(cudaStreamCreateWithFlags(&copies, 1));
    MUST(cudaEventCreate(&start));
    MUST(cudaEventCreate(&end));
    MUST(cudaEventCreate(&copied));
    MUST(cudaMalloc(&x, size));
    MUST(cudaMallocHost(&in, size));
    MUST(cudaMallocHost(&out, size));
    cudaGraphExec last_step = capture_last_step(x, out, stream);
    worker->checksum = 0xcbf29ce484222325ull;
    MUST(cudaEventRecord(start, stream));
    for (long token = 0; token < flags.loops; token++) {
        float *y;
        for (int i = 0; i < WIDTH; i++)
            in[i] = (float)((token * 31 + i) % 17) / 17.0f;
        MUST(cudaMemcpyAsync(x, in, size, TO_DEVICE, copies));
        MUST(cudaEventRecord(copied, copies));
        MUST(cudaStreamWaitEvent(stream, copied, 0));
        MUST(cudaMallocAsync(&y, size, stream));
        MUST(cudaMemsetAsync(y, 0, size, stream));
        if (flags.needless) { /* what somebody may write, and a comparison of two traces finds */
            float *again;
            MUST(cudaMalloc(&again, size));
            MUST(cudaFree(again));
        }
        run_layers(x, y, stream);
        MUST(cudaGraphLaunch(last_step, stream));
        MUST(cudaFreeAsync(y, stream));
        MUST(cudaStreamSynchronize(stream));
        worker->checksum = hash(worker->checksum, out, size);
    }
    MUST(cudaEventRecord(end, stream));
    MUST(cudaEventSynchronize(end));
    MUST(cudaEventElapsedTime(&worker->gpu_ms, start, end));
    MUST(cudaGraphExecDestroy(last_step));
    MUST(cudaFreeHost(out));
    MUST(cudaFreeHost(in));
    MUST(cudaFree(x));
    MUST(cudaEventDestroy(copied));
    MUST(cudaEventDestroy(end));
    MUST(cudaEventDestroy(start));
    MUST(cudaStreamDestroy(copies));
    MUST(cudaStreamDestroy(stream));
    return NULL;
}

static struct worker infer_on_all_threads(void)
{
    static struct worker workers[MOST_THREADS];
    for (long i = 1; i < flags.threads; i++)
        if (pthread_create(&workers[i].thread, NULL, infer, &workers[i]))
            must(304, "pthread_create");
    infer(&workers[0]);
    for (long i = 1; i < flags.threads; i++) {
        pthread_join(workers[i].thread, NULL);
        if (workers[i].checksum != workers[0].checksum)
            must(719, "comparing the threads' results");
    }
    return workers[0];
}

/* More than the device has: fails, and the program goes on. */
static const char *fail_once(void)
{
    void *never;
    cudaMalloc(&never, (size_t)1 << 46);
    return cudaGetErrorString(cudaGetLastError());
}

static void crash(void *unused)
{
    (void)unused;
    abort();
}

static void crash_in_callback(void)
{
    cudaStream stream;
    MUST(cudaStreamCreateWithFlags(&stream, 1));
    MUST(cudaLaunchHostFunc(stream, crash, NULL));
    MUST(cudaStreamSynchronize(stream));
}

static void again_in_a_child(char **arguments)
{
    char *kept[64];
    int count = 0;
    for (char **a = arguments; *a && count < 63; a++)
        if (strcmp(*a, "--fork"))
            kept[count++] = *a;
    kept[count] = NULL;
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        execv("/proc/self/exe", kept);
        _exit(127);
    }
    int status = 0;
    if (child < 0 || waitpid(child, &status, 0) != child || status) {
        fprintf(stderr, "demo program: the child failed (status %d)\n", status);
        exit(4);
    }
}

static long number(const char *flag, const char *text)
{
    char *end = NULL;
    long value = text ? strtol(text, &end, 10) : 0;
    if (text && *text && !*end && value >= 0)
        return value;
    fprintf(stderr, "demo program: %s needs a number, as in %s 4\n", flag, flag);
    exit(2);
}

static void read_flags(char **arguments)
{
    const struct {
        const char *name;
        long *value;
    } numbers[] = {{"--loops", &flags.loops}, {"--threads", &flags.threads}, {"--burst", &flags.burst},
                   {"--sleep", &flags.sleep_ms}, {"--exit", &flags.exit_code}};
    for (char **a = arguments + 1; *a; a++) {
        size_t i = 0, known = sizeof numbers / sizeof numbers[0];
        while (i < known && strcmp(*a, numbers[i].name))
            i++;
        if (i < known) {
            *numbers[i].value = number(a[0], a[1]);
            a++;
        } else if (!strcmp(*a, "--fork")) {
            flags.fork = 1;
        } else if (!strcmp(*a, "--crash")) {
            flags.crash = 1;
        } else if (!strcmp(*a, "--needless")) {
            flags.needless = 1;
        } else {
            fprintf(stderr, "demo program: unknown flag %s: use --loops N, --threads N, --burst N, --sleep MS, "
                            "--exit N, --fork, --crash, --needless\n", *a);
            exit(2);
        }
    }
    if (flags.threads < 1 || flags.threads > MOST_THREADS) {
        fprintf(stderr, "demo program: --threads must be 1 to %d\n", MOST_THREADS);
        exit(2);
    }
}

int main(int count, char **arguments)
{
    (void)count;
    read_flags(arguments);
    if (flags.sleep_ms)
        usleep((useconds_t)flags.sleep_ms * 1000);
    double begin = seconds();
    static char properties[4096]; /* begins with the name */
    size_t available, total;
    MUST(cudaSetDevice(0));
    MUST(cudaGetDeviceProperties(properties, 0));
    MUST(cudaMemGetInfo(&available, &total));
    for (long i = 0; i < flags.burst; i++) {
        int device;
        cudaGetDevice(&device);
    }
    load_weights();
    void *held;
    MUST(cudaMalloc(&held, HELD));
    const char *failure = fail_once();
    if (flags.crash)
        crash_in_callback();
    struct worker result = infer_on_all_threads();
    for (int layer = 0; layer < LAYERS; layer++)
        MUST(cudaFree(weights[layer]));
    MUST(cudaFree(gain));

    printf("%s: %d layers, %zu KiB of weights, %ld tokens on %ld thread%s\n", properties, LAYERS,
           LAYERS * MATRIX * sizeof(float) / 1024, flags.loops, flags.threads, flags.threads > 1 ? "s" : "");
    printf("asked for 64 TiB, went on without: %s\n", failure);
    printf("took %.2f s, %.2f s of it on the stand-in GPU\n", seconds() - begin, (double)result.gpu_ms / 1e3);
    printf("checksum %016llx\n", (unsigned long long)result.checksum);
    if (flags.fork)
        again_in_a_child(arguments);
    fflush(stdout);
    return (int)flags.exit_code;
}
