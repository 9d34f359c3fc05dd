/* Calls by processes that come from each other. In: a library and one of the words below. Out: exit status 0 if every
 * call was made; "bystander" prints where the function is and waits for its standard input's end. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define CALLS 2000

typedef int (*function)(int *);

static const char *self, *library, *other;

static function open_library(const char *path)
{
	void *handle = dlopen(path, RTLD_NOW);
	function f = handle ? (function)dlsym(handle, "cuDriverGetVersion") : NULL;

	if (!f) {
		fprintf(stderr, "%s\n", dlerror());
		_exit(2);
	}
	return f;
}

static void make_calls(function f, int count)
{
	int version;

	while (count-- > 0)
		f(&version);
}

static void *calls_of_a_thread(void *f)
{
	make_calls(f, CALLS);
	return NULL;
}

/* One thread calls all the time, while children are forked that call at once. */
static int forks(void)
{
	function f = open_library(library);
	pthread_t thread;
	int i, status, bad = 0;

	make_calls(f, CALLS);
	pthread_create(&thread, NULL, calls_of_a_thread, f);
	for (i = 0; i < 3; i++) {
		if (fork() == 0) {
			make_calls(f, CALLS);
			_exit(0);
		}
	}
	make_calls(f, CALLS);
	while (wait(&status) > 0)
		bad |= status;
	pthread_join(thread, NULL);
	return bad != 0;
}

static void *executes(void *unused)
{
	(void)unused;
	execl(self, self, library, other, "once", NULL);
	_exit(3);
}

/* The program is replaced by a thread that is not the first. */
static void executes_in_a_thread(void)
{
	pthread_t thread;

	make_calls(open_library(library), CALLS);
	pthread_create(&thread, NULL, executes, NULL);
	for (;;)
		pause();
}

/* Its calls go on while hooks for everybody come beside those for this process. */
static void *goes_on(void *f)
{
	int i;

	for (i = 0; i < CALLS; i++) {
		make_calls(f, 1);
		usleep(50);
	}
	make_calls(open_library(other), CALLS);
	_exit(0);
}

/* The first thread ends, another goes on, also with a library that was not there before. */
static void first_thread_ends(void)
{
	pthread_t thread;

	pthread_create(&thread, NULL, goes_on, open_library(library));
	pthread_exit(NULL);
}

static void waits(void)
{
	char byte;

	printf("%p\n", (void *)open_library(library));
	fflush(stdout);
	while (read(0, &byte, 1) > 0)
		;
	for (;;)
		pause();
}

int main(int count, char **words)
{
	if (count != 4)
		return 2;
	self = words[0], library = words[1], other = words[2];
	if (!strcmp(words[3], "once")) {
		make_calls(open_library(library), CALLS);
		return 0;
	}
	if (!strcmp(words[3], "forks"))
		return forks();
	if (!strcmp(words[3], "executes"))
		executes_in_a_thread();
	if (!strcmp(words[3], "ends"))
		first_thread_ends();
	if (!strcmp(words[3], "bystander"))
		waits();
	return 2;
}
