// Loads a library inside a call of another, as a CUDA runtime does in its first call. In: few.c as a library, and a copy
// of it that was never loaded. Out: for how many nanoseconds the inner loading took, as this program saw it.
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <time.h>

static const char *inner;
static uint64_t took;

static uint64_t now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1000000000ULL + time.tv_nsec;
}

static void load(void *data)
{
	uint64_t before = now();

	if (!dlopen(inner, RTLD_NOW | RTLD_LOCAL))
		fprintf(stderr, "%s\n", dlerror());
	took = now() - before;
	(void)data;
}

int main(int argc, char **argv)
{
	void *library = argc > 2 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
	int (*launch)(void *, void (*)(void *), void *);
	int (*version)(int *);
	int number;

	if (!library) {
		fprintf(stderr, "inside LIBRARY COPY\n");
		return 2;
	}
	inner = argv[2];
	*(void **)&launch = dlsym(library, "cuLaunchHostFunc");
	*(void **)&version = dlsym(library, "cuDriverGetVersion");
	launch(NULL, load, NULL);
	version(&number);
	printf("%llu\n", (unsigned long long)took);
	return 0;
}
