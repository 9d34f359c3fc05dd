// x MODE [ARGS]: calls libx in one of the ways below. What it does is exact, so the test knows every call.
// What goes out: the exit status, 0 if every call gave what it should; x_wait's word.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "x.h"

static char **words;

static long number(int index)
{
	CHECK(words[index]);
	return atol(words[index]);
}

static void leaves(long n)
{
	for (long i = 0; i < n; i++)
		CHECK(x_leaf((int)i) == i + 1);
}

static void wait_for(pid_t child)
{
	int status;

	CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
}

static int back(int n)
{
	return x_leaf(n) + x_down(2);
}

static void *last_call(void *unused)
{
	(void)unused;
	leaves(1);
	x_exit_thread();
	return NULL;
}

static void *three_calls(void *unused)
{
	(void)unused;
	leaves(3);
	return NULL;
}

// jump FRAMES TIMES: each jump leaves FRAMES calls. All calls here are made from the same stack depth.
static void jump(void)
{
	volatile long left = number(3);
	jmp_buf here;

	setjmp(here);
	if (left-- > 0)
		x_jump((int)number(2), &here);
	CHECK(x_leaf(1) == 2);
}

// threads TIMES AT_ONCE BODY
static void threads(void *(*body)(void *))
{
	pthread_t ids[64];
	long at_once = number(3);

	for (long done = 0; done < number(2); done += at_once) {
		for (long i = 0; i < at_once; i++)
			CHECK(!pthread_create(&ids[i], NULL, body, NULL));
		for (long i = 0; i < at_once; i++)
			pthread_join(ids[i], NULL);
	}
}

static void children(void)
{
	for (long i = 0; i < number(2); i++) {
		pid_t child = fork();
		if (!child) {
			leaves(2);
			_exit(0);
		}
		wait_for(child);
	}
}

static void vforks(void)
{
	for (volatile long i = 0; i < number(2); i++) {
		leaves(1);
		pid_t child = vfork();
		if (!child) {
			execl("/proc/self/exe", words[0], "leaf", "2", NULL);
			_exit(127);
		}
		wait_for(child);
	}
}

// The child returns from a call that its parent made.
static void fork_inside(void)
{
	for (long i = 0; i < number(2); i++) {
		pid_t child = x_fork();
		leaves(2);
		if (!child)
			_exit(0);
		wait_for(child);
	}
}

static void exec_inside(void)
{
	char *next[] = {"/proc/self/exe", "leaf", "3", NULL};

	leaves(1);
	x_exec(next);
}

static void *exec_in_thread(void *unused)
{
	exec_inside();
	return unused;
}

// load START FILE...: says in START that it runs, opens each library, and calls.
static void load(int pause_us)
{
	CHECK(fopen(words[2], "w"));
	for (char **file = words + 3; *file; file++) {
		CHECK(dlopen(*file, RTLD_NOW | RTLD_LOCAL));
		usleep(pause_us);
	}
	leaves(1);
	puts("loaded");
}

static void mode(const char *name)
{
	if (!strcmp(name, "leaf"))
		leaves(number(2));
	else if (!strcmp(name, "down"))
		for (long i = 0; i < number(3); i++)
			CHECK(x_down((int)number(2)) == number(2));
	else if (!strcmp(name, "jump"))
		jump();
	else if (!strcmp(name, "catch"))
		for (long i = 0; i < number(3); i++)
			CHECK(x_catch((int)number(2)) == number(2) + 2);
	else if (!strcmp(name, "tail"))
		for (long i = 0; i < number(2); i++)
			CHECK(x_tail2(1) == 4 && x_tail(1) == 3);
	else if (!strcmp(name, "callback"))
		for (long i = 0; i < number(2); i++)
			CHECK(x_call(back, 1) == 5);
	else if (!strcmp(name, "exit-thread"))
		threads(last_call);
	else if (!strcmp(name, "churn"))
		threads(three_calls);
	else if (!strcmp(name, "kill"))
		x_kill();
	else if (!strcmp(name, "abort"))
		x_abort();
	else if (!strcmp(name, "exec"))
		exec_inside();
	else if (!strcmp(name, "exec-in-thread")) {
		pthread_t id;
		CHECK(!pthread_create(&id, NULL, exec_in_thread, NULL));
		pthread_join(id, NULL);
	} else if (!strcmp(name, "fork"))
		fork_inside();
	else if (!strcmp(name, "vfork"))
		vforks();
	else if (!strcmp(name, "children"))
		children();
	else if (!strcmp(name, "wait"))
		x_wait("inside", words[2]);
	else if (!strcmp(name, "wait-then-leaf")) {
		x_wait("inside", words[2]);
		leaves(number(3));
		puts("called");
	} else if (!strcmp(name, "load"))
		load(0);
	else if (!strcmp(name, "load-slowly"))
		load(5000);
	else
		CHECK(!"a mode");
}

int main(int count, char **arguments)
{
	words = arguments;
	CHECK(count > 1);
	mode(arguments[1]);
	return 0;
}
