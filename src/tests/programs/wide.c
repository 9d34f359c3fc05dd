// wide environ GIGABYTES LIBRARY | wide maps FOLDER LIBRARY: makes what the kernel tells of this process as large as a
// program can without any right, then loads the library and calls it.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/prctl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "check.h"

enum { MAPPINGS = 8000, FOLDERS = 400 };

/* A field of /proc/self/stat, as proc(5) counts them. */
static unsigned long field(int number)
{
	char text[2048], *at;
	int file = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
	ssize_t length = read(file, text, sizeof(text) - 1);

	CHECK(length > 0 && !close(file));
	text[length] = 0;
	CHECK((at = strrchr(text, ')')));
	for (int i = 2; i < number; i++)
		CHECK((at = strchr(at + 1, ' ')));
	return strtoul(at + 1, NULL, 10);
}

static void widen_environ(size_t bytes)
{
	struct prctl_mm_map map = {
		.start_code = field(26), .end_code = field(27), .start_stack = field(28), .start_data = field(45),
		.end_data = field(46), .start_brk = field(47), .brk = (unsigned long)sbrk(0), .arg_start = field(48),
		.arg_end = field(49), .exe_fd = (unsigned)-1,
	};
	char *at = mmap(NULL, bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	CHECK(at != MAP_FAILED);
	map.env_start = (unsigned long)at;
	map.env_end = (unsigned long)at + bytes;
	if (prctl(PR_SET_MM, PR_SET_MM_MAP, &map, sizeof(map), 0)) {
		puts("not here");
		exit(0);
	}
}

/* Maps one file MAPPINGS times. The file's path is about 100,000 bytes long, and /proc/PID/maps repeats it for each. */
static void widen_maps(const char *folder)
{
	int at = open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC), next, file;
	char name[251];

	memset(name, 'd', sizeof(name) - 1);
	name[sizeof(name) - 1] = 0;
	for (int i = 0; i < FOLDERS; i++) {
		CHECK(!mkdirat(at, name, 0755));
		CHECK((next = openat(at, name, O_PATH | O_DIRECTORY | O_CLOEXEC)) >= 0 && !close(at));
		at = next;
	}
	CHECK((file = openat(at, "file", O_RDWR | O_CREAT | O_CLOEXEC, 0755)) >= 0 && !ftruncate(file, 4096));
	/* Neighbours that differ stay apart. */
	for (int i = 0; i < MAPPINGS; i++)
		CHECK(mmap(NULL, 4096, i & 1 ? PROT_READ : PROT_NONE, MAP_PRIVATE, file, 0) != MAP_FAILED);
}

int main(int count, char **words)
{
	int (*function)(int *), version;
	void *library;

	CHECK(count > 3);
	if (!strcmp(words[1], "environ"))
		widen_environ((size_t)atol(words[2]) << 30);
	else
		widen_maps(words[2]);
	CHECK((library = dlopen(words[3], RTLD_NOW)));
	CHECK((function = (int (*)(int *))dlsym(library, "cuDriverGetVersion")));
	for (int i = 0; i < 10; i++) {
		CHECK(!function(&version));
		usleep(100000);
	}
	puts("called");
	return 0;
}
