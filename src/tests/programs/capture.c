// capture LIBRARY FILE [race COUNT]: calls functions of the library with pointers that a recorder may stumble over.
// In: a library with stand-ins that do nothing, and a file of eight pages of letters (f), its page 2 ending with a
// string. Out: each call has a number of its own, which src/tests/live/capture.rs knows; the exit status.
// With race other threads change and unmap a name while it is passed COUNT times.
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE 4096ul
#define KERNEL ((void *)0xffffffff81000000ul)

typedef int function();

static void *library;
static int file;
static char *edge; /* a page that nothing is behind; 16 pages before it are there too */
static char *freed;
static uint64_t out_value = 0x1234;

static function *named(const char *name)
{
	function *found = (function *)dlsym(library, name);
	if (!found)
		exit(9);
	return found;
}

/* Far from everything else, so that what is unmapped there stays unmapped. */
static void *pages_at(uint64_t at, size_t count)
{
	void *found = mmap((void *)at, count * PAGE, PROT_READ | PROT_WRITE,
			   MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
	if (found == MAP_FAILED)
		exit(8);
	return found;
}

static void *pages(size_t count)
{
	void *at = mmap(NULL, count * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (at == MAP_FAILED)
		exit(8);
	return at;
}

/* Of the file; nobody has touched it, and it is not even in the page cache if that can be had. */
static char *untouched(void)
{
	posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
	char *at = mmap(NULL, 8 * PAGE, PROT_READ, MAP_PRIVATE, file, 0);
	if (at == MAP_FAILED)
		exit(8);
	return at;
}

static char *repeated(const char *what, size_t bytes)
{
	char *text = malloc(bytes + 1);
	size_t length = strlen(what);
	for (size_t i = 0; i < bytes; i++)
		text[i] = what[i % length];
	text[bytes] = 0;
	return text;
}

static char *before_edge(size_t bytes)
{
	return edge + PAGE - bytes;
}

static void name(uint64_t number, const void *text)
{
	static function *call;
	if (!call)
		call = named("cuModuleGetFunction");
	call(&out_value, number, text);
}

static void names(void)
{
	name(0, "kernel");
	name(1, NULL);
	name(2, (void *)0x1000);
	name(3, KERNEL);
	name(4, (void *)0x8000000000000000ul);
	name(5, (void *)-1l);
	name(6, freed);
	memset(edge, 'e', PAGE);
	name(7, before_edge(100));
	name(8, repeated("y", 65536));
	name(9, "line\nline\r\t\x01\"\\ \xff\xfe\x80 \xc3");
	memcpy(before_edge(6), "whole", 6);
	name(10, before_edge(6));
	name(11, untouched() + 3 * PAGE - 10);
	name(12, repeated("z", 4095));
	name(13, repeated("z", 4094));
	name(14, repeated("\xc3\xbc", 65536));
	char *closed = pages(1);
	mprotect(closed, PAGE, PROT_NONE);
	name(15, closed);
	name(16, pages(1));
	name(17, "");
	char *beyond = mmap(NULL, 16 * PAGE, PROT_READ, MAP_PRIVATE, file, 0);
	name(18, beyond + 9 * PAGE); /* past the end of the file: SIGBUS to who touches it */
	name(19, beyond + 8 * PAGE - 20);
	name(20, repeated("z", 4096));
	name(21, (void *)1);
	name(22, untouched() + 3 * PAGE - 1);
}

static void bus_ids(void)
{
	function *call = named("cuDeviceGetByPCIBusId");
	call(&out_value, repeated("b", 255));
	call(&out_value, repeated("b", 256));
	call(&out_value, repeated("b", 254));
	call(&out_value, untouched() + 3 * PAGE - 10);
	call(&out_value, edge + PAGE);
}

static void structures(void)
{
	function *call = named("cuMemcpy2D_v2");
	uint64_t copy[16];
	memset(copy, 0x11, sizeof(copy));
	call(copy);
	call(NULL);
	memset(edge, 0x22, PAGE);
	call(before_edge(64));
	call(before_edge(128));
	call(before_edge(127));
	call((void *)0x1000);
	call(KERNEL);
	call(freed);
	call(untouched() + PAGE - 64);
	call((void *)-64l);
}

static void launches(void)
{
	function *call = named("cuLaunchKernelEx");
	struct { uint32_t sizes[7], pad; void *stream, *list; uint32_t count, end; } config = {{1, 2, 3, 4, 5, 6, 7}, 0, NULL, NULL, 0, 0};
	struct { uint32_t id, pad, value[16]; } list[5] = {{2, 0, {1}}, {4, 0, {7, 8, 9}}, {1, 0, {0}}, {1, 0, {0}}, {8, 0, {3}}};
	call(&config, 1, NULL, NULL);
	config.list = list, config.count = 2;
	call(&config, 2, NULL, NULL);
	config.count = 0xffffffff;
	call(&config, 3, NULL, NULL);
	config.list = freed;
	call(&config, 4, NULL, NULL);
	config.list = KERNEL, config.count = 1;
	call(&config, 5, NULL, NULL);
	call(before_edge(20), 6, NULL, NULL);
	call(NULL, 7, NULL, NULL);
	config.list = NULL, config.count = 3;
	call(&config, 8, NULL, NULL);
	config.list = before_edge(72), config.count = 4; /* only one of the four is there */
	call(&config, 9, NULL, NULL);
}

static void lists(void)
{
	function *call = named("cuMemcpyBatchAsync_v2");
	uint64_t list[128];
	for (uint64_t i = 0; i < 128; i++)
		list[i] = i + 1;
	uint64_t counts[] = {2, 0, 100, 1ul << 61, (1ul << 61) + 1, -1ul, 16, 17};
	for (size_t i = 0; i < sizeof(counts) / sizeof(*counts); i++)
		call(list, list, list, counts[i], NULL, NULL, 0ul, NULL);
	call(NULL, freed, before_edge(8), 2ul, NULL, NULL, 0ul, NULL);
	call(KERNEL, before_edge(16), untouched() + PAGE - 8, 2ul, NULL, NULL, 0ul, NULL);
}

static void results(void)
{
	function *call = named("cuMemAlloc_v2");
	void *bad[] = {&out_value, NULL, (void *)0x1000, freed, KERNEL, before_edge(4), before_edge(8)};
	memset(edge, 0x33, PAGE);
	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++)
		call(bad[i], (uint64_t)i);
	function *get_name = named("cuFuncGetName"), *get_string = named("cuGetErrorString");
	char *texts[] = {"text", NULL, freed, KERNEL, repeated("w", 65536), untouched() + 3 * PAGE - 10};
	for (size_t i = 0; i < sizeof(texts) / sizeof(*texts); i++) {
		get_name(&texts[i], i);
		get_string((int)i, &texts[i]);
	}
	for (size_t i = 1; i < 5; i++)
		get_name(bad[i], i + 10);
	named("cuDeviceGetName")(repeated("n", 300), 256, 0);
	named("cuDeviceGetName")(freed, 256, 1);
}

#if defined(__x86_64__)
/* The function in rax, with a stack (rsi) that has two words above the return address, and then nothing. */
__asm__(".text\n.globl call_at\n.type call_at, @function\ncall_at:\npush %rbx\nmov %rsp, %rbx\nmov %rsi, %rsp\n"
	"mov $1, %edi\nmov $2, %esi\nmov $3, %edx\nmov $4, %ecx\nmov $5, %r8d\nmov $6, %r9d\n"
	"call *%rax\nmov %rbx, %rsp\npop %rbx\nret\n.size call_at, . - call_at\n");
#endif

static void at_the_end_of_the_stack(void)
{
#if defined(__x86_64__)
	function *called = named("cuLaunchKernel");
	char *stack = before_edge(16);
	__asm__ volatile("call call_at" : "+a"(called), "+S"(stack) : : "rdi", "rdx", "rcx", "r8", "r9", "r10",
			 "r11", "memory", "cc");
#endif
}

static char *shared;
static atomic_int over;

static void *change(void *unused)
{
	for (unsigned i = 0; !over; i++) {
		memset(shared, i & 1 ? 'a' : 'b', 300 + i % 700);
		shared[300 + i % 700] = 0;
	}
	return unused;
}

static void *unmap(void *at)
{
	while (!over) {
		mprotect(at, PAGE, PROT_NONE);
		mprotect(at, PAGE, PROT_READ | PROT_WRITE);
		madvise(at, PAGE, MADV_DONTNEED);
	}
	return NULL;
}

static int race(long count)
{
	pthread_t threads[2];
	shared = pages(1);
	char *gone = pages_at(0x330000000000, 2);
	memset(gone + PAGE, 'c', 50);
	memset(shared, 'b', 2000);
	if (pthread_create(&threads[0], NULL, change, NULL) || pthread_create(&threads[1], NULL, unmap, gone))
		return 7;
	for (long i = 0; i < count; i++) {
		name(98, shared);
		name(99, gone + PAGE - 5);
	}
	over = 1;
	for (int i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
	return 0;
}

int main(int argc, char **argv)
{
	if (argc < 3 || (file = open(argv[2], O_RDONLY)) < 0)
		return 2;
	library = dlopen(argv[1], RTLD_NOW);
	if (!library)
		return 3;
	edge = (char *)pages_at(0x310000000000, 18) + 16 * PAGE;
	freed = pages_at(0x320000000000, 1);
	memset(freed, 'f', PAGE);
	if (munmap(edge + PAGE, PAGE) || munmap(freed, PAGE))
		return 4;
	if (argc == 5)
		return race(atol(argv[4]));
	names();
	bus_ids();
	structures();
	launches();
	lists();
	results();
	at_the_end_of_the_stack();
	return 0;
}
