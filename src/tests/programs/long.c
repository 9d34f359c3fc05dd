// long MODE ARGS: what is long, or much, for a recorder. How often it called what it knows exactly, and so does the test.
// In: one of the modes below, and a library with libcuda's functions. Out: what took how long, as lines "NAME NUMBER";
// the exit status, 0 if every call gave what it should. With -DLIBRARY this is the smallest such library.
#ifdef LIBRARY
int cuDriverGetVersion(int *version)
{
	*version = 13000;
	return 0;
}

int cuInit(unsigned flags)
{
	return flags != 0;
}
#else
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "check.h"

static char **words;

static long number(int index)
{
	CHECK(words[index]);
	return atol(words[index]);
}

static uint64_t now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

static void wait_until(uint64_t when)
{
	struct timespec time = {(time_t)(when / 1000000000), (long)(when % 1000000000)};

	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, NULL))
		;
}

static void *open_library(const char *path)
{
	void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);

	if (!library)
		fprintf(stderr, "long: %s\n", dlerror());
	CHECK(library);
	return library;
}

static void *function(void *library, const char *name)
{
	void *found = dlsym(library, name);

	CHECK(found);
	return found;
}

static int (*version)(int *);

static void versions(long calls)
{
	int got = 0;

	while (calls-- > 0)
		CHECK(!version(&got) && got);
}

// --- pace LIBRARY TURNS A_SECOND: so many turns of eight calls, of which one allocates, one frees, and an object is
// made and destroyed. Whoever could not keep up makes up for it. A short-lived thread takes every thousandth turn.

static int (*memory_info)(size_t *, size_t *), (*allocate)(uint64_t *, size_t), (*give_back)(uint64_t);
static int (*current)(void **), (*make_event)(void **, unsigned), (*destroy_event)(void *);
static int (*set_current)(void *);
static void *context;

static void turn(void)
{
	size_t some, all;
	uint64_t held[2];
	void *event, *got;

	versions(1);
	CHECK(!memory_info(&some, &all));
	CHECK(!allocate(&held[0], 512));
	CHECK(!current(&got) && got == context);
	CHECK(!make_event(&event, 2));
	versions(1);
	CHECK(!destroy_event(event));
	CHECK(!give_back(held[0]));
}

static void *one_turn(void *unused)
{
	CHECK(!set_current(context));
	turn();
	return unused;
}

static void find_all(void *library)
{
	int (*init)(unsigned) = (int (*)(unsigned))function(library, "cuInit");
	int (*retain)(void **, int) = (int (*)(void **, int))function(library, "cuDevicePrimaryCtxRetain");

	version = (int (*)(int *))function(library, "cuDriverGetVersion");
	memory_info = (int (*)(size_t *, size_t *))function(library, "cuMemGetInfo_v2");
	allocate = (int (*)(uint64_t *, size_t))function(library, "cuMemAlloc_v2");
	give_back = (int (*)(uint64_t))function(library, "cuMemFree_v2");
	current = (int (*)(void **))function(library, "cuCtxGetCurrent");
	set_current = (int (*)(void *))function(library, "cuCtxSetCurrent");
	make_event = (int (*)(void **, unsigned))function(library, "cuEventCreate");
	destroy_event = (int (*)(void *))function(library, "cuEventDestroy_v2");
	CHECK(!init(0) && !retain(&context, 0) && !set_current(context));
}

static void pace(void)
{
	long turns = number(3), a_second = number(4);
	pthread_t other;

	find_all(open_library(words[2]));
	uint64_t began = now();
	for (long made = 0, due; made < turns;) {
		due = (long)((now() - began) / 1000000 + 1) * a_second / 1000;
		for (; made < due && made < turns; made++) {
			if (made % 1000) {
				turn();
				continue;
			}
			CHECK(!pthread_create(&other, NULL, one_turn, NULL));
			CHECK(!pthread_join(other, NULL));
		}
		wait_until(began + (uint64_t)(made * 1000 / a_second) * 1000000);
	}
	printf("ns %llu\n", (unsigned long long)(now() - began));
}

// --- calls LIBRARY CALLS: without a pause; at-once LIBRARY THREADS CALLS; born LIBRARY THREADS CALLS AT_ONCE

static pthread_barrier_t together;

static void *calls_together(void *calls)
{
	pthread_barrier_wait(&together);
	versions((long)(intptr_t)calls);
	pthread_barrier_wait(&together);
	return NULL;
}

static void *calls_alone(void *calls)
{
	versions((long)(intptr_t)calls);
	return NULL;
}

static void threads(long count, void *(*body)(void *))
{
	pthread_t *ids = calloc((size_t)count, sizeof *ids);
	pthread_attr_t small;

	CHECK(ids && !pthread_attr_init(&small) && !pthread_attr_setstacksize(&small, 64 << 10));
	for (long i = 0; i < count; i++)
		CHECK(!pthread_create(&ids[i], &small, body, (void *)(intptr_t)number(4)));
	for (long i = 0; i < count; i++)
		CHECK(!pthread_join(ids[i], NULL));
	free(ids);
}

static void at_once(void)
{
	CHECK(!pthread_barrier_init(&together, NULL, (unsigned)number(3)));
	threads(number(3), calls_together);
}

static void born(void)
{
	for (long done = 0; done < number(3); done += number(5))
		threads(number(5), calls_alone);
}

// --- open CALLS LIBRARY...: opens each and calls in it

static void open_many(void)
{
	uint64_t began = now();

	for (char **library = words + 3; *library; library++) {
		version = (int (*)(int *))function(open_library(*library), "cuDriverGetVersion");
		versions(number(2));
	}
	printf("ns %llu\n", (unsigned long long)(now() - began));
}

// --- reopen LIBRARY TIMES CALLS [NEXT]: opens it, calls, closes it, again and again. With NEXT it is another file each
// time, of the same name: NEXT says where its next copy lies, with a %d. Where it is mapped changes too.

static int is_mapped(const char *path)
{
	char line[4096];
	FILE *maps = fopen("/proc/self/maps", "r");
	int found = 0;

	CHECK(maps);
	while (!found && fgets(line, sizeof line, maps))
		found = strstr(line, path) != NULL;
	fclose(maps);
	return found;
}

static void reopen(void)
{
	uint64_t opening = 0, began;
	char next[4096];

	for (long i = 0; i < number(3); i++) {
		if (words[5]) {
			snprintf(next, sizeof next, words[5], (int)i);
			CHECK(!rename(next, words[2]));
		}
		began = now();
		void *library = open_library(words[2]);
		opening += now() - began;
		version = (int (*)(int *))function(library, "cuDriverGetVersion");
		versions(number(4));
		CHECK(!dlclose(library));
		CHECK(i % 16 || !is_mapped(words[2]));
		// Something else is there now.
		if (i % 3 == 0)
			CHECK(mmap(NULL, (size_t)(1 + i % 7) << 16, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) !=
			      MAP_FAILED);
	}
	printf("ns_each %llu\n", (unsigned long long)opening / (unsigned long long)number(3));
}

int main(int count, char **arguments)
{
	const char *mode = count > 2 ? arguments[1] : "";

	words = arguments;
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (!strcmp(mode, "pace")) {
		pace();
	} else if (!strcmp(mode, "calls") || !strcmp(mode, "at-once") || !strcmp(mode, "born")) {
		version = (int (*)(int *))function(open_library(words[2]), "cuDriverGetVersion");
		if (!strcmp(mode, "calls"))
			versions(number(3));
		else
			strcmp(mode, "born") ? at_once() : born();
	} else if (!strcmp(mode, "open")) {
		open_many();
	} else if (!strcmp(mode, "reopen")) {
		reopen();
	} else {
		CHECK(!"a mode");
	}
	return 0;
}
#endif
