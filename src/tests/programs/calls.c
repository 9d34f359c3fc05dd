// calls LIBRARY COUNT [threads N] [fork] [wait-file FILE] [ready-file FILE]: opens the library and at once
// calls cuDriverGetVersion COUNT times (in each thread); with `fork` a fork+exec'ed child does the same first.
// With wait-file it says "waiting" and waits for FILE before it opens the library, with ready-file it says
// "ready" and waits after that. A negative COUNT means for ever.
// What goes out: these words and the exit status. For NVIDIA's real library, which needs no GPU for this.
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static int (*get_version)(int *);
static long count;

static void *work(void *unused)
{
	int version;

	(void)unused;
	for (long i = 0; count < 0 || i < count; i++)
		get_version(&version);
	return NULL;
}

static void wait_for(const char *file, const char *word)
{
	if (!file)
		return;
	puts(word);
	fflush(stdout);
	while (access(file, F_OK))
		usleep(1000);
}

static int in_child(char **argv)
{
	pid_t child = fork();
	int status;

	if (child == 0) {
		execl("/proc/self/exe", argv[0], argv[1], argv[2], NULL);
		_exit(127);
	}
	return waitpid(child, &status, 0) < 0 || status;
}

int main(int argc, char **argv)
{
	const char *before = NULL, *after = NULL;
	int threads = 1, again = 0;
	pthread_t ids[64];

	if (argc < 3)
		return 2;
	count = atol(argv[2]);
	for (int i = 3; i < argc; i++) {
		if (!strcmp(argv[i], "fork"))
			again = 1;
		else if (i + 1 == argc)
			return 2;
		else if (!strcmp(argv[i], "threads"))
			threads = atoi(argv[++i]);
		else if (!strcmp(argv[i], "wait-file"))
			before = argv[++i];
		else if (!strcmp(argv[i], "ready-file"))
			after = argv[++i];
		else
			return 2;
	}
	if (threads > 64)
		return 2;
	if (again && in_child(argv))
		return 3;
	wait_for(before, "waiting");
	void *library = dlopen(argv[1], RTLD_NOW);
	if (!library) {
		fprintf(stderr, "%s\n", dlerror());
		return 4;
	}
	get_version = (int (*)(int *))dlsym(library, "cuDriverGetVersion");
	if (!get_version)
		return 5;
	wait_for(after, "ready");
	for (int i = 1; i < threads; i++)
		if (pthread_create(&ids[i], NULL, work, NULL))
			return 6;
	work(NULL);
	for (int i = 1; i < threads; i++)
		pthread_join(ids[i], NULL);
	return 0;
}
