/* Requests that a driver refuses, and files that come by other ways than open: what a tracer must show for what it is.
 * Usage: ioctls [TIMES]   what nvidia.ko and nvidia-uvm.ko saw of it, they count; prints how many requests it made of
 * them ("ours"), and how many of other files that look alike ("others"). */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static unsigned ours, others;
static uint32_t client;

static int escape(int file, unsigned number, void *payload, unsigned size)
{
    __atomic_add_fetch(&ours, 1, __ATOMIC_RELAXED);
    return ioctl(file, _IOC(_IOC_READ | _IOC_WRITE, 'F', number, size), payload);
}

static int unified(int file, unsigned number, void *payload)
{
    __atomic_add_fetch(&ours, 1, __ATOMIC_RELAXED);
    return ioctl(file, number, payload);
}

static int needs(const char *path)
{
    int file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0) {
        fprintf(stderr, "ioctls: cannot open %s (%s): is the driver loaded?\n", path, strerror(errno));
        exit(2);
    }
    return file;
}

static int control(int file, uint32_t object, uint32_t command, void *params, uint32_t size)
{
    uint32_t args[8] = {client, object, command, 0, 0, 0, size, 0};
    uint64_t pointer = (uint64_t)params;
    memcpy(args + 4, &pointer, 8);
    return escape(file, 0x2a, args, sizeof args);
}

static int alloc(int file, uint32_t parent, uint32_t handle, uint32_t class, void *params, uint32_t size)
{
    uint32_t args[12] = {client, parent, handle, class, 0, 0, 0, 0, size};
    uint64_t pointer = (uint64_t)params;
    memcpy(args + 4, &pointer, 8);
    int result = escape(file, 0x2b, args, sizeof args);
    if (!handle && class == 0x41)
        client = args[2];
    return result;
}

static void bad_pointers(int file, int uvm)
{
    char *pages = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    munmap(pages + 4096, 4096);
    escape(file, 0x2a, (void *)8, 32);
    escape(file, 0x2a, NULL, 32);
    escape(file, 0x2a, (void *)0xffff888000000000ul, 32); /* the kernel's */
    escape(file, 0x2a, pages + 4096 - 16, 32);            /* half of it is there */
    unified(uvm, 37, (void *)8);
    unified(uvm, 33, pages); /* 9,264 bytes are too many for it */
    control(file, client, 0x00000101, (void *)16, 40);
    control(file, client, 0x00000101, NULL, 40);
    munmap(pages, 4096);
}

static void bad_sizes(int file)
{
    char *large = calloc(1, 1 << 16);
    uint32_t wrapped[4] = {0x2a, 0xffffffff};
    memcpy(wrapped + 2, &large, 8);
    escape(file, 0x2a, large, 0x3fff);
    escape(file, 0x2a, large, 0);
    escape(file, 0x2a, large, 31);
    escape(file, 0xd3, wrapped, 16);
    wrapped[1] = 1 << 16;
    escape(file, 0xd3, wrapped, 16);
    escape(file, 0xd3, wrapped, 12);
    control(file, client, 0x00000101, large, 0xffffffff);
    free(large);
}

static void unknown(int file, int gpu, int uvm, int tools, int modeset)
{
    char params[64] = {0};
    uint32_t set[4] = {7, 16};
    escape(file, 0x7f, params, 16);
    escape(gpu, 0x2a, params, 32);                 /* only nvidiactl takes it */
    control(file, client, 0x2080fffe, params, 4);  /* no such command, and not GSP's either: object */
    control(file, client, 0x0000fe01, params, 4);  /* the opaque channel to GSP */
    control(file, client, 0x00007701, params, 4);  /* no such command */
    control(file, 0xdead, 0x00000101, params, 40); /* no such object */
    alloc(file, client, 0, 0x7777, NULL, 0);       /* no such class */
    alloc(file, 0xdead, 0, 0x80, NULL, 0);         /* no such parent */
    unified(uvm, 199, params);
    unified(uvm, 0x30000001, params);
    unified(tools, 57, params);
    unified(modeset, _IOC(_IOC_READ | _IOC_WRITE, 'm', 0, 16), set);
    unified(modeset, 0x1234, set);
}

/* Memory that goes to the GPU and comes back by a fault. The address is the offset, as the driver wants it. */
static void managed(int uvm)
{
    uint64_t at = 0x510000000000, params[10] = {at, 8192};
    volatile char *pages = mmap((void *)at, 8192, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED_NOREPLACE, uvm, (off_t)at);
    if (pages == MAP_FAILED)
        exit(3);
    pages[0] = pages[4096] = 1;
    unified(uvm, 51, params);
    if (pages[0] + pages[4096] != 2)
        exit(3);
    munmap((void *)pages, 8192);
}

/* Looks like ours by number, but is not. */
static void other_files(void)
{
    char params[64] = {0};
    int pair[2], null = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair))
        return;
    int files[] = {null, pair[0], pair[1], 987654, -1};
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        ioctl(files[i], 0xc020462a, params);
        ioctl(files[i], 0x30000001, params);
        others += 2;
    }
    close(null);
    close(pair[0]);
    close(pair[1]);
}

static void send_file(int socket, int file)
{
    char byte = 0, room[CMSG_SPACE(sizeof file)] = {0};
    struct iovec data = {&byte, 1};
    struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof file);
    memcpy(CMSG_DATA(head), &file, sizeof file);
    sendmsg(socket, &message, 0);
}

static int receive_file(int socket)
{
    int file = -1;
    char byte, room[CMSG_SPACE(sizeof file)];
    struct iovec data = {&byte, 1};
    struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    if (recvmsg(socket, &message, 0) == 1 && CMSG_FIRSTHDR(&message))
        memcpy(&file, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof file);
    return file;
}

/* A child that never opened anything: one file inherited, one sent. Its requests are counted here. */
static void other_ways(int file)
{
    char params[64] = {0};
    int pair[2], copy = dup2(file, 200);
    control(copy, client, 0x00000101, params, 40);
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair))
        return;
    pid_t child = fork();
    if (child == 0) {
        control(copy, client, 0x00000136, params, 4);
        close(copy);
        close(file);
        control(receive_file(pair[1]), client, 0x00000136, params, 4);
        _exit(0);
    }
    ours += 2;
    send_file(pair[0], file);
    waitpid(child, NULL, 0);
    close(copy);
    close(pair[0]);
    close(pair[1]);
}

static void *worker(void *file)
{
    char params[64] = {0};
    for (int i = 0; i < 20; i++)
        control(*(int *)file, client, 0x00000101, params, 40);
    return NULL;
}

static void threads(int file)
{
    pthread_t workers[4];
    for (int i = 0; i < 4; i++)
        if (pthread_create(&workers[i], NULL, worker, &file))
            exit(2);
    for (int i = 0; i < 4; i++)
        pthread_join(workers[i], NULL);
}

int main(int count, char **arguments)
{
    long times = count > 1 ? strtol(arguments[1], NULL, 10) : 1;
    int file = needs("/dev/nvidiactl"), gpu = needs("/dev/nvidia0"), uvm = needs("/dev/nvidia-uvm");
    int tools = needs("/dev/nvidia-uvm-tools"), modeset = needs("/dev/nvidia-modeset");
    alloc(file, 0, 0, 0x41, NULL, 0);
    for (long i = 0; i < times; i++) {
        bad_pointers(file, uvm);
        bad_sizes(file);
        unknown(file, gpu, uvm, tools, modeset);
        managed(uvm);
        other_files();
        other_ways(file);
        threads(file);
    }
    printf("ours %u\nothers %u\n", ours, others);
    return 0;
}
