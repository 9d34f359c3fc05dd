// unseen WAY LIBRARY [FILE]: comes to a library in a way that a recorder may overlook, and makes CALLS calls of it; or
// makes them in the library and in a child that shares its memory.
// In: a library of few.c; FILE: one that it may write, in an overlay for `same-number`. Out: "called", or "not here" where
// there is no such way; the exit status.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>

#include "check.h"
#include "by_hand.h"

enum { CALLS = 500 };

static const char *library, *file;
static int (*function)(int *);

static void calls(void)
{
	int version;

	for (int i = 0; i < CALLS; i++)
		CHECK(!function(&version) && version == 13000);
}

static void not_here(void)
{
	puts("not here");
	exit(0);
}

static void open_library(const char *path)
{
	void *opened = dlopen(path, RTLD_NOW);

	CHECK(opened);
	CHECK((function = (int (*)(int *))dlsym(opened, "cuDriverGetVersion")));
}

static void with_same_number(void)
{
	if (!same_number(library, file))
		not_here();
	open_library(file);
	calls();
}

static void after_another(void)
{
	CHECK(overwritten(library, file));
	open_library(file);
	calls();
}

// As large as before, and so soon that a coarse clock shows no time between.
static void overwritten_at_once(void)
{
	static char bytes[BY_HAND];
	int from = open(library, O_RDONLY), to;
	ssize_t length = read(from, bytes, sizeof(bytes));
	void *at;

	CHECK(plain_file(file));
	CHECK((to = open(file, O_RDWR)) >= 0 && length > 0 && !ftruncate(to, length));
	at = mmap(NULL, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE, to, 0);
	CHECK(at != MAP_FAILED && pwrite(to, bytes, (size_t)length, 0) == length);
	CHECK(!munmap(at, 4096) && !close(to) && !close(from));
	open_library(file);
	calls();
}

static int child(void *unused)
{
	(void)unused;
	calls();
	_exit(0);
}

static void wait_for(pid_t pid)
{
	int status;

	CHECK(pid > 0 && waitpid(pid, &status, 0) == pid && status == 0);
}

static void children(void)
{
	static char stack[1 << 16] __attribute__((aligned(16)));
	pid_t pid;

	open_library(library);
	calls();
	pid = vfork();
	if (!pid)
		child(NULL);
	wait_for(pid);
	wait_for(clone(child, stack + sizeof(stack), CLONE_VM | SIGCHLD, NULL));
}

static char *by_pkey(char *at, size_t length, int fd, off_t offset)
{
	(void)fd, (void)offset;
	if (syscall(SYS_pkey_mprotect, at, length, PROT_READ | PROT_EXEC, -1))
		not_here();
	return at;
}

// The kernel says that it failed, and has changed what lies before the hole.
static char *partly(char *at, size_t length, int fd, off_t offset)
{
	char *hole = at + length;

	(void)fd, (void)offset;
	CHECK(!munmap(hole, 4096));
	CHECK(mprotect(at, length + 4096, PROT_READ | PROT_EXEC) == -1);
	CHECK(mmap(hole, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == hole);
	return at;
}

static char *map(char *at, size_t length, int protection, int fd, off_t offset)
{
	return mmap(at, length, protection, MAP_PRIVATE | MAP_FIXED, fd, offset);
}

static char *by_personality(char *at, size_t length, int fd, off_t offset)
{
	int before = personality(0xffffffff);

	CHECK(personality((unsigned long)before | READ_IMPLIES_EXEC) == before);
	at = map(at, length, PROT_READ, fd, offset);
	CHECK(personality((unsigned long)before) != -1);
	return at;
}

// Somewhere else first.
static char *moved(char *at, size_t length, int fd, off_t offset)
{
	char *first = mmap(NULL, length, PROT_READ, MAP_PRIVATE, fd, offset);

	CHECK(first != MAP_FAILED && !mprotect(first, length, PROT_READ | PROT_EXEC));
	return mremap(first, length, length, MREMAP_MAYMOVE | MREMAP_FIXED, at);
}

// From the page before it, which holds no function.
static char *grown(char *at, size_t length, int fd, off_t offset)
{
	CHECK(!munmap(at, length));
	CHECK(map(at - 4096, 4096, PROT_READ | PROT_EXEC, fd, offset - 4096) == at - 4096);
	CHECK(mremap(at - 4096, 4096, length + 4096, 0) == at - 4096);
	return at;
}

static char *shared(char *at, size_t length, int fd, off_t offset)
{
	return mmap(at, length, PROT_READ | PROT_EXEC, MAP_SHARED | MAP_FIXED, fd, offset);
}

static char *writable(char *at, size_t length, int fd, off_t offset)
{
	return map(at, length, PROT_READ | PROT_WRITE | PROT_EXEC, fd, offset);
}

static const struct {
	const char *name;
	void (*run)(void);
	make_executable *make;
} ways[] = {
	{"same-number", with_same_number, NULL},
	{"overwritten", after_another, NULL},
	{"overwritten-at-once", overwritten_at_once, NULL},
	{"children", children, NULL},
	{"mprotect", NULL, by_mprotect},
	{"pkey_mprotect", NULL, by_pkey},
	{"partly", NULL, partly},
	{"personality", NULL, by_personality},
	{"moved", NULL, moved},
	{"grown", NULL, grown},
	{"shared", NULL, shared},
	{"writable", NULL, writable},
};

static void run_by_hand(make_executable *make)
{
	char *base = by_hand(library, make);

	CHECK(base);
	CHECK((function = function_in(library, base, "cuDriverGetVersion")));
	calls();
}

int main(int count, char **words)
{
	size_t way = 0;

	CHECK(count > 2);
	library = words[2];
	file = words[3];
	while (way < sizeof(ways) / sizeof(*ways) && strcmp(words[1], ways[way].name))
		way++;
	CHECK(way < sizeof(ways) / sizeof(*ways));
	if (ways[way].make)
		run_by_hand(ways[way].make);
	else
		ways[way].run();
	puts("called");
	return 0;
}
