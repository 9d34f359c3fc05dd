// resident MODE LIBRARY FILE GO ANSWER: calls functions of few.c with pointers into memory that is not resident.
// text, structure, out, touched: in a page whose fault is answered only once there is ANSWER, or after 10 s; the callee
// looks at it in the last of these. constants: in a page of FILE that nobody has touched, and that the callee touches.
// In: GO, a file, once it is to begin. Out: "ready", "calling", "called" and "answered" as they happen; the exit status.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "check.h"

enum { PAGE = 4096, PATIENCE_MS = 10000 };

static int faults;
static char *page;
static const char *answer;

static void say(const char *word)
{
	puts(word);
	fflush(stdout);
}

static void until(const char *file, int ms)
{
	for (int i = 0; access(file, F_OK) && i < ms; i++)
		usleep(1000);
}

// With zeroes. The fault is never answered by anybody else, so this thread must live.
static void *answer_late(void *unused)
{
	struct uffdio_zeropage zero = {.range = {(uintptr_t)page, PAGE}};

	until(answer, PATIENCE_MS);
	say("answered");
	CHECK(!ioctl(faults, UFFDIO_ZEROPAGE, &zero));
	return unused;
}

static void map_unanswered(void)
{
	struct uffdio_api api = {.api = UFFD_API};
	struct uffdio_register whole = {.mode = UFFDIO_REGISTER_MODE_MISSING};

	page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(page != MAP_FAILED);
	faults = (int)syscall(SYS_userfaultfd, O_CLOEXEC);
	if (faults < 0) {
		say("not here");
		exit(0);
	}
	whole.range = (struct uffdio_range){(uintptr_t)page, PAGE};
	CHECK(!ioctl(faults, UFFDIO_API, &api) && !ioctl(faults, UFFDIO_REGISTER, &whole));
}

static char *untouched(const char *path)
{
	int fd = open(path, O_RDONLY);
	char *at;

	CHECK(fd >= 0 && !fsync(fd));
	posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
	at = mmap(NULL, 8 * PAGE, PROT_READ, MAP_PRIVATE, fd, 0);
	CHECK(at != MAP_FAILED);
	return at + 3 * PAGE;
}

int main(int count, char **words)
{
	int (*get)(void **, void *, const char *), (*copy)(const void *), (*allocate)(void *, uint64_t);
	void *library, *function;
	const char *mode = words[1];
	pthread_t answers;

	CHECK(count == 6);
	answer = words[5];
	CHECK((library = dlopen(words[2], RTLD_NOW)));
	CHECK((get = (int (*)(void **, void *, const char *))dlsym(library, "cuModuleGetFunction")));
	CHECK((copy = (int (*)(const void *))dlsym(library, "cuMemcpy2D_v2")));
	CHECK((allocate = (int (*)(void *, uint64_t))dlsym(library, "cuMemAlloc_v2")));
	if (!strcmp(mode, "constants"))
		page = untouched(words[3]);
	else
		map_unanswered();
	say("ready");
	until(words[4], 60000);
	if (strcmp(mode, "constants"))
		CHECK(!pthread_create(&answers, NULL, answer_late, NULL));
	say("calling");
	if (!strcmp(mode, "text"))
		get(&function, NULL, page);
	else if (!strcmp(mode, "structure"))
		copy(page);
	else if (!strcmp(mode, "out"))
		allocate(page, 0);
	else
		get(&function, library, page);
	say("called");
	if (strcmp(mode, "constants"))
		CHECK(!pthread_join(answers, NULL));
	return 0;
}
