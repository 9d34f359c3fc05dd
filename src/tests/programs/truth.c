// truth LIBCUDA COUNTS SEED THREADS CALLS [ACTION...]: calls functions of libcuda in an order that the seed gives, and
// counts what it begins and ends where it outlives a SIGKILL. What the library counts itself it writes at exit.
// With `storm` signals come a few thousand times a second, and their handler calls too. Other actions (actions.h) are
// done now and then among the calls.
// In: the words. Out: COUNTS, a struct counts; the exit status.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <unistd.h>

#include "check.h"

// In this order in src/tests/live/truth.rs too.
static const char *const names[] = {
	"cuDriverGetVersion", "cuDeviceGetCount", "cuDeviceGetName", "cuMemGetInfo_v2",
	"cuMemAlloc_v2",      "cuMemFree_v2",     "cuCtxGetCurrent", "cuGetErrorName",
	"cuLaunchHostFunc",
};
// Of these the first are called at random.
enum { FUNCTIONS = sizeof names / sizeof *names, DIRECT = 8, ALLOC = 4, FREE = 5 };

struct counts {
	uint64_t pid, done;
	struct {
		uint64_t begun, ended;
	} of[FUNCTIONS];
	// By other libraries, and by this one in other processes.
	uint64_t elsewhere[FUNCTIONS], children;
};

static struct counts *counts;
static int (*functions[DIRECT])();
static int (*set_current)(void *);
static void *context;
static long calls;
static unsigned seed;

static uint64_t next(uint64_t *random)
{
	*random = *random * 6364136223846793005u + 1442695040888963407u;
	return *random >> 33;
}

static void call(unsigned which, uint64_t *held)
{
	char name[64];
	uint64_t out[2] = {0};

	if (which == ALLOC || which == FREE)
		which = *held ? FREE : ALLOC;
	__atomic_add_fetch(&counts->of[which].begun, 1, __ATOMIC_SEQ_CST);
	switch (which) {
	case 2:
		functions[which](name, (int)sizeof name, 0);
		break;
	case 3:
		functions[which](&out[0], &out[1]);
		break;
	case ALLOC:
		if (functions[which](held, (size_t)4096))
			*held = 0;
		break;
	case FREE:
		functions[which](*held);
		*held = 0;
		break;
	case 7:
		functions[which](2, &out[0]);
		break;
	default:
		functions[which](&out[0]);
	}
	__atomic_add_fetch(&counts->of[which].ended, 1, __ATOMIC_SEQ_CST);
}

#include "actions.h"

static const struct action *chosen[sizeof actions / sizeof *actions];
static unsigned number_chosen;

// Each thread does some.
static void act_now_and_then(uint64_t *random)
{
	if (number_chosen && next(random) % (uint64_t)(calls / 5 + 1) == 0)
		chosen[next(random) % number_chosen]->run(random);
}

static void *work(void *number)
{
	uint64_t random = seed + 7919 * (uint64_t)(uintptr_t)number, held = 0;

	set_current(context);
	for (long i = 0; i < calls; i++) {
		act_now_and_then(&random);
		call(next(&random) % DIRECT, &held);
	}
	return NULL;
}

static void stormed(int signal)
{
	uint64_t none = 0;

	(void)signal;
	call(0, &none);
}

static void storm(void)
{
	struct sigaction action = {.sa_handler = stormed, .sa_flags = SA_RESTART};
	struct itimerval often = {{0, 300}, {0, 300}};

	CHECK(!sigaction(SIGALRM, &action, NULL));
	CHECK(!setitimer(ITIMER_REAL, &often, NULL));
}

static void quiet(void)
{
	struct itimerval never = {{0, 0}, {0, 0}};

	setitimer(ITIMER_REAL, &never, NULL);
}

static void open_library(const char *path)
{
	void *library = dlopen(path, RTLD_NOW);
	int (*init)(unsigned), (*retain)(void **, int);

	CHECK(library);
	for (int i = 0; i < DIRECT; i++)
		CHECK((functions[i] = (int (*)())dlsym(library, names[i])));
	CHECK((init = (int (*)(unsigned))dlsym(library, "cuInit")));
	CHECK((retain = (int (*)(void **, int))dlsym(library, "cuDevicePrimaryCtxRetain")));
	CHECK((counted_by_library = (uint64_t (*)(const char *))dlsym(library, "standin_calls")));
	CHECK((set_current = (int (*)(void *))dlsym(library, "cuCtxSetCurrent")));
	CHECK(!init(0) && !retain(&context, 0));
}

static void choose(const char *name)
{
	for (size_t i = 0; i < sizeof actions / sizeof *actions; i++)
		if (!strcmp(name, actions[i].name))
			chosen[number_chosen++] = &actions[i];
	if (!few_path && number_chosen) {
		CHECK((few_path = getenv("TRUTH_FEW")) && (folder = getenv("TRUTH_FOLDER")));
		open_few(few_path, &few);
	}
}

int main(int count, char **words)
{
	pthread_t ids[64];
	long threads;
	int fd;

	CHECK(count >= 6);
	seed = (unsigned)atol(words[3]);
	threads = atol(words[4]);
	calls = atol(words[5]);
	CHECK(threads > 0 && threads <= 64);
	CHECK((fd = open(words[2], O_RDWR | O_CREAT, 0644)) >= 0 && !ftruncate(fd, sizeof *counts));
	counts = mmap(NULL, sizeof *counts, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHECK(counts != MAP_FAILED);
	open_library(words[1]);
	counts->pid = (uint64_t)getpid();
	for (int i = 6; i < count; i++)
		choose(words[i]);
	for (int i = 6; i < count; i++)
		if (!strcmp(words[i], "storm"))
			storm();
	for (long i = 0; i < threads; i++)
		CHECK(!pthread_create(&ids[i], NULL, work, (void *)(uintptr_t)i));
	for (long i = 0; i < threads; i++)
		pthread_join(ids[i], NULL);
	quiet();
	if (few_path)
		add_elsewhere(few.counted);
	counts->done = 1;
	puts("finished");
	return 0;
}
