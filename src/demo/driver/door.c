/* Stands in for the real library's talk with the kernel: with GPUREC_STANDIN_DRIVER=1 each call makes the ioctls that
 * the real one makes for it, for the stand-in modules of src/tests/vm to answer. Without it, this file does nothing: on
 * a machine with a GPU nothing may reach its driver. Everything here is called under the gate, but door_wait. */
#define _GNU_SOURCE
#include "door.h"

#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#define WINDOW (2ULL << 20) /* small allocations come out of pieces of this size */
#define WINDOWS 16384
#define BLOCKS 200000 /* ns: whoever has longer to wait sleeps in poll() */
#define NO_MEMORY 0x51

static const char uuid[] = "stand-in device!";
static int control = -1, gpu = -1, uvm = -1, uvm_more = -1, waiter = -1;
static unsigned branch = 580;
static uint32_t client, next_handle = 0x5c000001u;
static char windows[WINDOWS];

/* Memory that the driver knows: of a program's allocation, of a window, or registered. */
struct piece {
    uint64_t start, bytes;
    uint32_t handle;
    bool host;
};
static struct piece *pieces;
static size_t piece_count, piece_room;

bool door_on(void)
{
    static int on = -1;
    if (on < 0) {
        const char *text = getenv("GPUREC_STANDIN_DRIVER");
        on = text && !strcmp(text, "1");
    }
    return on;
}

/* --- requests --- */

static void set32(void *at, unsigned offset, uint32_t value)
{
    memcpy((char *)at + offset, &value, 4);
}

static void set64(void *at, unsigned offset, uint64_t value)
{
    memcpy((char *)at + offset, &value, 8);
}

static uint32_t read32(const void *at, unsigned offset)
{
    uint32_t value;
    memcpy(&value, (const char *)at + offset, 4);
    return value;
}

/* The status word of the payload, or all ones if the request itself failed. */
static uint32_t escape(int file, unsigned number, void *payload, unsigned size, int status)
{
    if (ioctl(file, _IOC(_IOC_READ | _IOC_WRITE, 'F', number, size), payload))
        return ~0u;
    return status < 0 ? 0 : read32(payload, (unsigned)status);
}

static uint32_t rm_alloc(uint32_t parent, uint32_t *handle, uint32_t class, void *params, uint32_t bytes)
{
    char args[48] = {0};
    set32(args, 0, client);
    set32(args, 4, parent);
    set32(args, 8, *handle);
    set32(args, 12, class);
    set64(args, 16, (uint64_t)params);
    set32(args, 32, bytes);
    uint32_t status = escape(control, 0x2b, args, sizeof args, 40);
    *handle = read32(args, 8);
    return status;
}

/* A handle of the library's own choice. */
static uint32_t rm_new(uint32_t parent, uint32_t class, void *params, uint32_t bytes)
{
    uint32_t handle = next_handle++;
    return rm_alloc(parent, &handle, class, params, bytes) ? 0 : handle;
}

static void rm_free(uint32_t handle)
{
    char args[16] = {0};
    set32(args, 0, client);
    set32(args, 8, handle);
    escape(control, 0x29, args, sizeof args, 12);
}

static void control_args(char args[32], uint32_t object, uint32_t command, void *params, uint32_t bytes)
{
    memset(args, 0, 32);
    set32(args, 0, client);
    set32(args, 4, object);
    set32(args, 8, command);
    set64(args, 16, (uint64_t)params);
    set32(args, 24, bytes);
}

static uint32_t rm_control(uint32_t object, uint32_t command, void *params, uint32_t bytes)
{
    char args[32];
    control_args(args, object, command, params, bytes);
    return escape(control, 0x2a, args, sizeof args, 28);
}

/* One whose parameters do not matter. */
static uint32_t rm_ask(uint32_t object, uint32_t command, uint32_t bytes)
{
    char params[2048] = {0};
    return rm_control(object, command, params, bytes);
}

/* The same in the form for large payloads. */
static void rm_ask_wrapped(uint32_t object, uint32_t command, uint32_t bytes)
{
    char args[32], wrapped[16], params[2048] = {0};
    control_args(args, object, command, params, bytes);
    set32(wrapped, 0, 0x2a);
    set32(wrapped, 4, sizeof args);
    set64(wrapped, 8, (uint64_t)args);
    escape(control, 0xd3, wrapped, sizeof wrapped, -1);
}

static uint32_t uvm_ask(int file, unsigned number, void *params, unsigned status)
{
    return ioctl(file, number, params) ? ~0u : read32(params, status);
}

/* --- cuInit --- */

static bool check_version(void)
{
    char args[72] = {0};
    set32(args, 0, '2');
    if (escape(control, 0xd2, args, sizeof args, -1))
        return false;
    branch = (unsigned)strtoul(args + 8, NULL, 10);
    return branch != 0;
}

static uint32_t device, subdevice;

static bool open_client(void)
{
    char root[108] = {0}, params[56] = {0};
    set32(root, 4, (uint32_t)getpid());
    if (rm_alloc(0, &client, 0x41, root, sizeof root))
        return false;
    device = rm_new(client, 0x80, params, 56);
    subdevice = device ? rm_new(device, 0x2080, params, 4) : 0;
    return subdevice != 0;
}

static bool open_unified(void)
{
    char params[40] = {0};
    uvm = open("/dev/nvidia-uvm", O_RDWR | O_CLOEXEC);
    uvm_more = open("/dev/nvidia-uvm", O_RDWR | O_CLOEXEC);
    if (uvm < 0 || uvm_more < 0 || uvm_ask(uvm, 0x30000001, params, 8))
        return false;
    memset(params, 0, sizeof params);
    set32(params, 0, (uint32_t)uvm);
    uvm_ask(uvm_more, 75, params, 4);
    memset(params, 0, sizeof params);
    uvm_ask(uvm, 39, params, 4);
    return true;
}

CUresult door_init(void)
{
    char cards[32 * 72] = {0};
    uint32_t attached = 0x100;
    if (!door_on() || control >= 0)
        return SUCCESS;
    control = open("/dev/nvidiactl", O_RDWR | O_CLOEXEC);
    if (control < 0 || !check_version())
        return NO_DEVICE;
    escape(control, 0xd6, (char[8]){0}, 8, -1);
    escape(control, 0xc8, cards, sizeof cards, -1);
    if (!open_client())
        return NO_DEVICE;
    rm_ask(client, 0x00000101, 40);
    rm_ask(client, 0x00000214, 384);
    rm_ask(client, 0x00000215, 132);
    escape(control, 0xd4, &attached, sizeof attached, -1);
    gpu = open("/dev/nvidia0", O_RDWR | O_CLOEXEC);
    uint32_t file = (uint32_t)control;
    if (gpu < 0 || escape(gpu, 0xc9, &file, sizeof file, -1))
        return NO_DEVICE;
    rm_ask(subdevice, 0x20800110, 132);
    rm_ask(subdevice, 0x2080014a, 268);
    rm_ask(subdevice, 0x20800102, 564);
    rm_ask(device, 0x00800292, 804);
    rm_ask_wrapped(subdevice, 0x20803601, 72);
    /* An answer that programs live with: a feature that is not there. */
    rm_ask(subdevice, 0x20801228, 16);
    return open_unified() ? SUCCESS : NO_DEVICE;
}

/* --- contexts --- */

struct door_context {
    struct door_context *next;
    const struct context *context;
    uint32_t space, page, fifo, group, event, channels[2], copies[2];
    void *doorbell, *ring;
    int doorbell_file, ring_file;
};
static struct door_context *contexts;

/* MAP_MEMORY names a file; mmap on it gives the memory. */
static void *map_memory(uint32_t memory, uint64_t bytes, int *file)
{
    char args[56] = {0};
    *file = open("/dev/nvidia0", O_RDWR | O_CLOEXEC);
    if (*file < 0)
        return NULL;
    set32(args, 0, client);
    set32(args, 4, device);
    set32(args, 8, memory);
    set64(args, 24, bytes);
    set32(args, 48, (uint32_t)*file);
    if (escape(control, 0x4e, args, sizeof args, 40))
        return NULL;
    void *memory_here = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, *file, 0);
    return memory_here == MAP_FAILED ? NULL : memory_here;
}

static void unmap_memory(uint32_t memory, void *address, uint64_t bytes, int file)
{
    char args[32] = {0};
    if (address)
        munmap(address, bytes);
    set32(args, 0, client);
    set32(args, 4, device);
    set32(args, 8, memory);
    set64(args, 16, (uint64_t)address);
    escape(control, 0x4f, args, sizeof args, 24);
    if (file >= 0)
        close(file);
}

static void register_space(uint32_t space)
{
    char gpu_params[40] = {0}, space_params[32] = {0};
    memcpy(gpu_params, uuid, 16);
    set32(gpu_params, 24, (uint32_t)-1);
    uvm_ask(uvm, 37, gpu_params, 36);
    memcpy(space_params, uuid, 16);
    set32(space_params, 16, (uint32_t)control);
    set32(space_params, 20, client);
    set32(space_params, 24, space);
    uvm_ask(uvm, 25, space_params, 28);
}

/* engine: 1 compute, 9 the first copy engine. */
static void new_channel(struct door_context *c, int i, uint32_t engine, uint32_t class)
{
    char params[368] = {0}, object[16] = {0}, token[4] = {0}, registered[56] = {0};
    set64(params, 8, 0x200000000ULL + (uint64_t)i * 0x10000);
    set32(params, 16, 1024);
    set32(params, 28, c->space);
    set32(params, 128, engine);
    c->channels[i] = rm_new(c->group, 0xc86f, params, branch >= 570 ? 368 : 360);
    c->copies[i] = rm_new(c->channels[i], class, object, class == 0xcbc0 ? 16 : 8);
    rm_control(c->channels[i], 0xc36f0108, token, sizeof token);
    memcpy(registered, uuid, 16);
    set32(registered, 16, (uint32_t)control);
    set32(registered, 20, client);
    set32(registered, 24, c->channels[i]);
    set64(registered, 32, 0x7f0000000000ULL + (uint64_t)i * WINDOW);
    set64(registered, 40, WINDOW);
    uvm_ask(uvm, 27, registered, 48);
}

/* Events reach a file of their own, on which poll() waits. */
static void new_event(struct door_context *c)
{
    char args[32] = {0}, event[16] = {0}, params[24] = {0};
    if (waiter < 0)
        waiter = open("/dev/nvidia0", O_RDWR | O_CLOEXEC);
    set32(event, 0, client);
    set32(event, 4, device);
    set32(event, 8, (uint32_t)waiter);
    escape(waiter, 0xce, event, sizeof event, 12);
    c->event = next_handle++;
    set32(params, 0, client);
    set32(params, 4, subdevice);
    set32(params, 8, 0x79);
    set64(params, 16, (uint64_t)waiter);
    set32(args, 0, client);
    set32(args, 4, subdevice);
    set32(args, 8, c->event);
    set32(args, 12, 0x79);
    set64(args, 16, (uint64_t)params);
    set32(args, 24, sizeof params);
    escape(control, 0x2b, args, sizeof args, 28); /* the shorter form */
}

void door_context_new(const struct context *context)
{
    char space[56] = {0}, page[2] = {1}, memory[128] = {0}, group[20] = {0}, on[3] = {1}, slice[8] = {0};
    if (!door_on() || control < 0)
        return;
    struct door_context *c = calloc(1, sizeof *c);
    if (!c)
        return;
    c->context = context;
    c->next = contexts;
    contexts = c;
    c->space = rm_new(device, 0x90f1, space, branch >= 580 ? 56 : 48);
    register_space(c->space);
    c->page = rm_new(subdevice, 0xc661, page, sizeof page);
    c->doorbell = map_memory(c->page, 0x10000, &c->doorbell_file);
    set64(memory, 64, 0x10000);
    c->fifo = rm_new(device, 0x3e, memory, branch >= 545 ? 128 : 120);
    c->ring = map_memory(c->fifo, 0x10000, &c->ring_file);
    set32(group, 8, c->space);
    set32(group, 12, 1);
    c->group = rm_new(device, 0xa06c, group, sizeof group);
    new_channel(c, 0, 1, 0xcbc0);
    new_channel(c, 1, 9, 0xc8b5);
    set64(slice, 0, 2000);
    rm_control(c->group, 0xa06c0103, slice, sizeof slice);
    rm_control(c->group, 0xa06c0101, on, sizeof on);
    new_event(c);
}

static void unregister(const struct door_context *c)
{
    char params[32];
    for (int i = 0; i < 2; i++) {
        memset(params, 0, sizeof params);
        bool short_form = branch >= 590;
        if (!short_form)
            memcpy(params, uuid, 16);
        set32(params, short_form ? 0 : 16, client);
        set32(params, short_form ? 4 : 20, c->channels[i]);
        uvm_ask(uvm, 28, params, short_form ? 8 : 24);
    }
    memset(params, 0, sizeof params);
    memcpy(params, uuid, 16);
    uvm_ask(uvm, 26, params, 16);
    uvm_ask(uvm, 38, params, 16);
}

void door_context_end(const struct context *context)
{
    struct door_context **link = &contexts;
    while (*link && (*link)->context != context)
        link = &(*link)->next;
    struct door_context *c = *link;
    if (!c)
        return;
    *link = c->next;
    unregister(c);
    rm_free(c->event);
    rm_free(c->group); /* its channels go with it */
    unmap_memory(c->fifo, c->ring, 0x10000, c->ring_file);
    rm_free(c->fifo);
    unmap_memory(c->page, c->doorbell, 0x10000, c->doorbell_file);
    rm_free(c->page);
    rm_free(c->space);
    free(c);
}

/* --- memory --- */

static struct piece *piece_add(struct piece piece)
{
    if (piece_count == piece_room) {
        size_t room = piece_room ? piece_room * 2 : 64;
        struct piece *more = realloc(pieces, room * sizeof *more);
        if (!more)
            return NULL;
        pieces = more;
        piece_room = room;
    }
    pieces[piece_count] = piece;
    return &pieces[piece_count++];
}

static uint32_t vram(uint64_t bytes, uint32_t *handle)
{
    char params[128] = {0};
    set64(params, 64, bytes);
    set64(params, 72, WINDOW);
    *handle = next_handle++;
    return rm_alloc(device, handle, 0x40, params, branch >= 545 ? 128 : 120);
}

/* The three requests of an allocation. */
static CUresult piece_new(uint64_t start, uint64_t bytes)
{
    char range[24] = {0};
    static char map[9264];
    bool wide = branch >= 550;
    struct piece piece = {.start = start, .bytes = (bytes + WINDOW - 1) / WINDOW * WINDOW};
    uint32_t status = vram(piece.bytes, &piece.handle);
    if (status)
        return status == NO_MEMORY ? OUT_OF_MEMORY : OPERATING_SYSTEM;
    set64(range, 0, start);
    set64(range, 8, piece.bytes);
    uvm_ask(uvm, 73, range, 16);
    memset(map, 0, sizeof map);
    set64(map, 0, start);
    set64(map, 8, piece.bytes);
    memcpy(map + 24, uuid, 16);
    set64(map, wide ? 9240 : 1176, 1);
    set32(map, wide ? 9248 : 1184, (uint32_t)control);
    set32(map, wide ? 9252 : 1188, client);
    set32(map, wide ? 9256 : 1192, piece.handle);
    uvm_ask(uvm, 33, map, wide ? 9260 : 1196);
    return piece_add(piece) ? SUCCESS : OUT_OF_MEMORY;
}

CUresult door_memory_new(uint64_t start, uint64_t bytes, uint64_t arena)
{
    if (!door_on() || control < 0)
        return SUCCESS;
    if (bytes >= WINDOW / 2)
        return piece_new(start, bytes);
    for (uint64_t i = (start - arena) / WINDOW; i <= (start + bytes - 1 - arena) / WINDOW && i < WINDOWS; i++) {
        if (windows[i])
            continue;
        CUresult result = piece_new(arena + i * WINDOW, WINDOW);
        if (result)
            return result;
        windows[i] = 1;
    }
    return SUCCESS;
}

static void uvm_release(uint64_t start, uint64_t bytes)
{
    char params[24] = {0};
    set64(params, 0, start);
    if (branch < 590)
        set64(params, 8, bytes);
    uvm_ask(uvm, 34, params, branch < 590 ? 16 : 8);
}

static void piece_end(uint64_t start, bool host)
{
    for (size_t i = 0; i < piece_count; i++) {
        if (pieces[i].start != start || pieces[i].host != host)
            continue;
        if (!host)
            uvm_release(start, pieces[i].bytes);
        rm_free(pieces[i].handle);
        pieces[i] = pieces[--piece_count];
        return;
    }
}

void door_memory_end(uint64_t start, uint64_t bytes)
{
    if (door_on() && control >= 0 && bytes >= WINDOW / 2)
        piece_end(start, false);
}

/* The real one asks the driver, whose answer is no. */
void door_memory_refused(uint64_t bytes)
{
    uint32_t handle;
    if (door_on() && control >= 0 && !vram(bytes, &handle))
        rm_free(handle);
}

CUresult door_managed_new(uint64_t start, uint64_t bytes)
{
    if (!door_on() || uvm < 0)
        return SUCCESS;
    void *there = mmap((void *)start, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, uvm, (off_t)start);
    return there == MAP_FAILED ? OUT_OF_MEMORY : SUCCESS;
}

void door_managed_end(uint64_t start, uint64_t bytes)
{
    if (!door_on() || uvm < 0)
        return;
    uvm_release(start, bytes);
    mmap((void *)start, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}

void door_migrate(uint64_t start, uint64_t bytes)
{
    char params[80] = {0};
    uint64_t page = 4096, from = start / page * page;
    if (!door_on() || uvm < 0)
        return;
    set64(params, 0, from);
    set64(params, 8, (start + bytes - from + page - 1) / page * page);
    memcpy(params + 16, uuid, 16);
    uvm_ask(uvm, 51, params, 72);
}

CUresult door_register(uint64_t start, uint64_t bytes)
{
    char args[56] = {0};
    uint64_t page = 4096, from = start / page * page;
    struct piece piece = {.start = start, .bytes = bytes, .handle = next_handle, .host = true};
    if (!door_on() || control < 0)
        return SUCCESS;
    next_handle++;
    set32(args, 0, client);
    set32(args, 4, device);
    set32(args, 8, piece.handle);
    set32(args, 12, 0x71);
    set64(args, 24, from);
    set64(args, 32, start + bytes - from - 1);
    set32(args, 48, (uint32_t)-1);
    if (escape(gpu, 0x27, args, sizeof args, 40))
        return INVALID_VALUE;
    return piece_add(piece) ? SUCCESS : OUT_OF_MEMORY;
}

void door_unregister(uint64_t start)
{
    if (door_on() && control >= 0)
        piece_end(start, true);
}

/* --- waiting --- */

/* Outside the gate. Who has long to wait sleeps until an interrupt says that something is done. */
void door_wait(int64_t until)
{
    if (!door_on() || waiter < 0 || until - clock_now() < BLOCKS)
        return;
    struct pollfd file = {.fd = waiter, .events = POLLIN | POLLPRI};
    poll(&file, 1, 1000);
}
