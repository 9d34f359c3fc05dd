/* The least that a hook can cost: a session program that does nothing, at the entry and the return of functions.
 * Usage: empty FUNCTION LIBRARY[+BYTES]...   prints "ready", stays until its standard input ends. BYTES: how far
 *                                            behind the function's begin
 *        empty -a LIBRARY ADDRESSES...       many functions: a file for each library, of their addresses in it, in
 *                                            hexadecimal, one a line
 * Needs Linux 6.13 and root. Headers may be older than the kernel: what is asked of it stands here
 * (include/uapi/linux/bpf.h). */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { PROG_LOAD = 5, LINK_CREATE = 28, TYPE_KPROBE = 2, UPROBE_SESSION = 57 };

/* Functions of a library, and bytes of a file in which its headers lie. */
enum { MOST = 8192, HEAD = 65536 };

struct load {
    uint32_t type, count;
    uint64_t instructions, license;
    uint32_t log_level, log_size;
    uint64_t log;
    uint32_t kernel, flags;
    char name[16];
    uint32_t device, attach_type;
};

struct create {
    uint32_t program, target, attach_type, flags;
    uint64_t path, offsets, reference_counters, cookies;
    uint32_t count, multi_flags, pid, pad;
};

static int bpf(int command, void *what, unsigned size)
{
    return (int)syscall(SYS_bpf, command, what, size);
}

static int load(void)
{
    /* r0 = 0: the return is wanted too; exit */
    static const uint64_t program[] = {0xb7, 0x95};
    struct load load = {
        .type = TYPE_KPROBE,
        .count = 2,
        .instructions = (uintptr_t)program,
        .license = (uintptr_t) "GPL",
        .name = "empty",
        .attach_type = UPROBE_SESSION,
    };
    return bpf(PROG_LOAD, &load, sizeof load);
}

/* Where a function lies in its file. */
static uint64_t file_offset(const char *library, const char *function)
{
    void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    char *address = handle ? dlsym(handle, function) : NULL;
    Dl_info at;
    if (!address || !dladdr(address, &at)) {
        fprintf(stderr, "empty: %s\n", dlerror());
        exit(2);
    }
    const ElfW(Ehdr) *head = at.dli_fbase;
    const ElfW(Phdr) *part = (const void *)((char *)at.dli_fbase + head->e_phoff);
    uint64_t place = (uint64_t)(address - (char *)at.dli_fbase);
    for (int i = 0; i < head->e_phnum; i++)
        if (part[i].p_type == PT_LOAD && place - part[i].p_vaddr < part[i].p_memsz)
            return place - part[i].p_vaddr + part[i].p_offset;
    fprintf(stderr, "empty: %s lies in no segment of %s\n", function, library);
    exit(2);
}

static void attach_at(int program, const char *library, const uint64_t *offsets, unsigned count)
{
    struct create create = {
        .program = (uint32_t)program,
        .attach_type = UPROBE_SESSION,
        .path = (uintptr_t)library,
        .offsets = (uintptr_t)offsets,
        .count = count,
    };
    if (bpf(LINK_CREATE, &create, sizeof create) < 0) {
        perror("empty: attaching");
        exit(3);
    }
}

static void attach(int program, const char *function, char *library)
{
    char *plus = strrchr(library, '+');
    uint64_t more = plus ? strtoul(plus + 1, NULL, 10) : 0;
    if (plus)
        *plus = 0;
    uint64_t offset = file_offset(library, function) + more;
    attach_at(program, library, &offset, 1);
}

static void attach_all(int program, const char *library, const char *addresses)
{
    static uint64_t offsets[MOST];
    static unsigned char head[HEAD];
    FILE *file = fopen(library, "r"), *list = fopen(addresses, "r");
    if (!file || !list || fread(head, 1, sizeof head, file) < sizeof(ElfW(Ehdr))) {
        fprintf(stderr, "empty: %s or %s cannot be read\n", library, addresses);
        exit(2);
    }
    const ElfW(Ehdr) *elf = (const void *)head;
    const ElfW(Phdr) *part = (const void *)(head + elf->e_phoff);
    if (elf->e_phoff + elf->e_phnum * sizeof *part > sizeof head) {
        fprintf(stderr, "empty: the headers of %s lie too far in\n", library);
        exit(2);
    }
    unsigned long address;
    unsigned count = 0;
    while (count < MOST && fscanf(list, "%lx", &address) == 1)
        for (int i = 0; i < elf->e_phnum; i++)
            if (part[i].p_type == PT_LOAD && address - part[i].p_vaddr < part[i].p_filesz) {
                offsets[count++] = address - part[i].p_vaddr + part[i].p_offset;
                break;
            }
    attach_at(program, library, offsets, count);
}

int main(int count, char **words)
{
    int all = count > 1 && !strcmp(words[1], "-a");
    if (count < 3 || (all && count % 2)) {
        fprintf(stderr, "usage: empty FUNCTION LIBRARY[+BYTES]... or empty -a LIBRARY ADDRESSES...\n");
        return 2;
    }
    int program = load();
    if (program < 0) {
        perror("empty: loading a session program");
        return 3;
    }
    for (int i = 2; i < count; i += 1 + all)
        if (all)
            attach_all(program, words[i], words[i + 1]);
        else
            attach(program, words[1], words[i]);
    puts("ready");
    fflush(stdout);
    while (getchar() != EOF)
        ;
    return 0;
}
