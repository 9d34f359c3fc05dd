// calls LIBRARY COUNT [threads N] [fork] [wait-file FILE]: opens the library and at once calls
// cuDriverGetVersion COUNT times (in each thread); with `fork` a fork+exec'ed child does the same.
// What goes out: nothing but the exit status. Used with NVIDIA's real library, which needs no GPU for this.
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
	for (long i = 0; i < count; i++)
		get_version(&version);
	return NULL;
}

int main(int argc, char **argv)
{
	int threads = 1, again = 0;
	pthread_t ids[64];

	if (argc < 3)
		return 2;
	count = atol(argv[2]);
	for (int i = 3; i < argc; i++) {
		if (!strcmp(argv[i], "threads") && i + 1 < argc)
			threads = atoi(argv[++i]);
		else if (!strcmp(argv[i], "fork"))
			again = 1;
		else if (!strcmp(argv[i], "wait-file") && i + 1 < argc) {
			i++;
			while (access(argv[i], F_OK))
				usleep(1000);
		}
	}
	if (again) {
		pid_t child = fork();
		int status;

		if (child == 0) {
			execl("/proc/self/exe", argv[0], argv[1], argv[2], NULL);
			_exit(127);
		}
		if (waitpid(child, &status, 0) < 0 || status)
			return 3;
	}
	void *library = dlopen(argv[1], RTLD_NOW);
	if (!library) {
		fprintf(stderr, "%s\n", dlerror());
		return 4;
	}
	get_version = (int (*)(int *))dlsym(library, "cuDriverGetVersion");
	if (!get_version)
		return 5;
	for (int i = 1; i < threads; i++)
		pthread_create(&ids[i], NULL, work, NULL);
	work(NULL);
	for (int i = 1; i < threads; i++)
		pthread_join(ids[i], NULL);
	return 0;
}
