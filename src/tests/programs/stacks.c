// stacks MODE OUTER INNER TIMES: makes calls of libx on one stack while one is open on another. OUTER, INNER: where the
// stacks lie (see stack_in); OUTER may be `own`, the stack that the thread has.
// In: the words; `threads MODE...` does the same in some threads at once. Out: "called", and the exit status, 0 if every
// call gave what it should.
#define _GNU_SOURCE
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

#include "check.h"
#include "x.h"

enum { SIZE = 1 << 16, THREADS = 4 };

struct fiber {
	ucontext_t here, back;
	void (*run)(struct fiber *);
	struct fiber *other;
	int done;
};

// What a thread has: two stacks, and what runs on them.
static __thread struct fiber fibers[2];
static __thread char *array, *pair;
static __thread char *inner;
static __thread sigjmp_buf before;
static const char *outer_place, *inner_place;
static void (*mode)(void);
static long times;

// static: in the program's data. heap: by malloc, beside others. map: a mapping of its own. array: in a frame of the
// thread's own stack. upper, lower: the halves of one mapping.
static char *stack_in(const char *place)
{
	static char statics[2 * THREADS][SIZE] __attribute__((aligned(4096)));
	static int next;
	char *at = NULL;

	if (!strcmp(place, "static"))
		at = statics[__atomic_fetch_add(&next, 1, __ATOMIC_RELAXED)];
	else if (!strcmp(place, "heap"))
		at = malloc(SIZE);
	else if (!strcmp(place, "array"))
		at = array;
	else if (!strcmp(place, "map"))
		at = (char *)mmap(NULL, 3 * SIZE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) + SIZE;
	if (!strcmp(place, "map"))
		CHECK(!mprotect(at, SIZE, PROT_READ | PROT_WRITE));
	if (!strcmp(place, "upper") || !strcmp(place, "lower")) {
		if (!pair)
			pair = mmap(NULL, 2 * SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		at = pair + (*place == 'u' ? SIZE : 0);
	}
	CHECK(at && at != MAP_FAILED);
	return at;
}

static int leaf(void)
{
	return x_leaf(41) == 42;
}

// --- fibers ---

static void fiber_main(unsigned low, unsigned high)
{
	struct fiber *fiber = (struct fiber *)(((uintptr_t)high << 32) | low);

	fiber->run(fiber);
	fiber->done = 1;
	swapcontext(&fiber->here, &fiber->back);
}

static void on_stack(struct fiber *fiber, char *stack, void (*run)(struct fiber *))
{
	uintptr_t number = (uintptr_t)fiber;

	CHECK(!getcontext(&fiber->here));
	fiber->here.uc_stack.ss_sp = stack;
	fiber->here.uc_stack.ss_size = SIZE;
	fiber->here.uc_link = NULL;
	fiber->run = run;
	fiber->done = 0;
	makecontext(&fiber->here, (void (*)(void))fiber_main, 2, (unsigned)number, (unsigned)(number >> 32));
}

static void resume(struct fiber *fiber)
{
	CHECK(!swapcontext(&fiber->back, &fiber->here));
}

static void leave(struct fiber *fiber)
{
	CHECK(!swapcontext(&fiber->here, &fiber->back));
}

// --- a handler on the alternate stack, while a call is open ---

static void handle(int unused)
{
	(void)unused;
	CHECK(leaf());
}

static int in_handler(int n)
{
	CHECK(!raise(SIGUSR1));
	return n;
}

static void signals(struct fiber *unused)
{
	struct sigaction action = {.sa_handler = handle, .sa_flags = SA_ONSTACK};
	stack_t alternate = {.ss_sp = inner, .ss_size = SIZE};

	(void)unused;
	CHECK(!sigaction(SIGUSR1, &action, NULL) && !sigaltstack(&alternate, NULL));
	for (long i = 0; i < times; i++)
		CHECK(x_call(in_handler, 6) == 7 && leaf());
	alternate.ss_flags = SS_DISABLE;
	CHECK(!sigaltstack(&alternate, NULL));
}

// The handler never returns, nor does the call that it interrupted.
static void handle_and_jump(int unused)
{
	(void)unused;
	CHECK(leaf());
	siglongjmp(before, 1);
}

static void jumps(struct fiber *unused)
{
	struct sigaction action = {.sa_handler = handle_and_jump, .sa_flags = SA_ONSTACK};
	stack_t alternate = {.ss_sp = inner, .ss_size = SIZE};

	(void)unused;
	CHECK(!sigaction(SIGUSR1, &action, NULL) && !sigaltstack(&alternate, NULL));
	for (volatile long i = 0; i < times; i++) {
		if (!sigsetjmp(before, 1))
			x_call(in_handler, 6);
		CHECK(leaf());
	}
}

// --- a hand-made change of stacks, while a call is open ---

static int elsewhere(int n)
{
#if defined(__x86_64__)
	char *top = inner + SIZE - 64;

	__asm__ volatile("mov %%rsp, %%rbx\nmov %0, %%rsp\ncall *%1\nmov %%rbx, %%rsp\n"
			 : : "r"(top), "r"(leaf) : "rbx", "rax", "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11",
			 "memory", "cc");
#endif
	return n;
}

static void by_hand(struct fiber *unused)
{
	(void)unused;
	for (long i = 0; i < times; i++)
		CHECK(x_call(elsewhere, 6) == 7 && leaf());
}

// --- two fibers with a call open in each ---

static __thread struct fiber *running;

static int yields(int n)
{
	struct fiber *self = running;

	leave(self);
	running = self;
	CHECK(leaf());
	return n;
}

static void calls_that_yield(struct fiber *fiber)
{
	(void)fiber;
	for (long i = 0; i < times; i++)
		CHECK(x_call(yields, 6) == 7 && leaf());
}

static void step(struct fiber *fiber)
{
	running = fiber;
	resume(fiber);
}

// In turn, so that the one that began first ends first; the thread itself calls in between.
static void switches(void)
{
	on_stack(&fibers[0], stack_in(outer_place), calls_that_yield);
	on_stack(&fibers[1], inner, calls_that_yield);
	while (!fibers[0].done || !fibers[1].done) {
		for (int i = 0; i < 2; i++)
			if (!fibers[i].done)
				step(&fibers[i]);
		CHECK(leaf());
	}
}

// The second runs to its end inside a call of the first.
static int nested(int n)
{
	on_stack(&fibers[1], inner, calls_that_yield);
	while (!fibers[1].done)
		step(&fibers[1]);
	return n;
}

static void calls_that_nest(struct fiber *unused)
{
	(void)unused;
	CHECK(x_call(nested, 6) == 7);
}

// Nobody comes back to it, and its stack is used again.
static void leaves_for_good(void)
{
	char *stack = stack_in(outer_place);

	for (long i = 0; i < times; i++) {
		on_stack(&fibers[0], stack, calls_that_yield);
		step(&fibers[0]);
		CHECK(leaf());
		if (i % 2)
			memset(stack, 0xee, SIZE);
	}
	for (int i = 0; i < 10; i++)
		CHECK(leaf());
}

static const struct {
	const char *name;
	void (*run)(void);
	void (*on_outer)(struct fiber *);
} modes[] = {
	{"signal", NULL, signals},
	{"jump", NULL, jumps},
	{"hand", NULL, by_hand},
	{"nest", NULL, calls_that_nest},
	{"switch", switches, NULL},
	{"left", leaves_for_good, NULL},
};
static void (*on_outer)(struct fiber *);

static __attribute__((noinline)) void run_below(void)
{
	inner = stack_in(inner_place);
	if (mode) {
		mode();
	} else if (!strcmp(outer_place, "own")) {
		on_outer(NULL);
	} else {
		on_stack(&fibers[0], stack_in(outer_place), on_outer);
		resume(&fibers[0]);
		CHECK(fibers[0].done);
	}
	CHECK(leaf());
}

static void *run(void *unused)
{
	char on_stack[SIZE] __attribute__((aligned(64)));

	array = on_stack;
	run_below();
	__asm__ volatile("" : : "r"(on_stack) : "memory");
	return unused;
}

int main(int count, char **words)
{
	int threads = count > 1 && !strcmp(words[1], "threads");
	pthread_t ids[THREADS];

	words += threads;
	CHECK(count - threads == 5);
	for (size_t i = 0; i < sizeof(modes) / sizeof(*modes); i++)
		if (!strcmp(words[1], modes[i].name))
			mode = modes[i].run, on_outer = modes[i].on_outer;
	CHECK(mode || on_outer);
	outer_place = words[2];
	inner_place = words[3];
	times = atol(words[4]);
	for (int i = 0; i < THREADS && threads; i++)
		CHECK(!pthread_create(&ids[i], NULL, run, NULL));
	for (int i = 0; i < THREADS && threads; i++)
		CHECK(!pthread_join(ids[i], NULL));
	if (!threads)
		run(NULL);
	puts("called");
	return 0;
}
