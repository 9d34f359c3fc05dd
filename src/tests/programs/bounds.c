// bounds names COUNT | bounds die COUNT: fills a recorder's tables. The functions of CUDA are in a library beside it:
// built with -DLIBRARY this is that library.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

void __cudaRegisterFunction(void **handle, const void *stub, char *function, const char *name, int limit, void *tid,
			    void *bid, void *bdim, void *gdim, int *size);
int cudaDeviceSynchronize(void);
int cudaGetDeviceCount(int *count);

#ifdef LIBRARY
void __cudaRegisterFunction(void **handle, const void *stub, char *function, const char *name, int limit, void *tid,
			    void *bid, void *bdim, void *gdim, int *size)
{
	(void)handle, (void)stub, (void)function, (void)name, (void)limit, (void)tid, (void)bid, (void)bdim, (void)gdim,
		(void)size;
}

// The thread ends in it.
int cudaDeviceSynchronize(void)
{
	syscall(SYS_exit, 0);
	return 0;
}

int cudaGetDeviceCount(int *count)
{
	return *count = 1;
}
#else
static void *die(void *unused)
{
	(void)unused;
	cudaDeviceSynchronize();
	return NULL;
}

static char name[4096];

int main(int count, char **words)
{
	if (count < 3)
		return 1;
	long many = atol(words[2]);

	memset(name, 'x', sizeof(name) - 1);
	for (long i = 0; i < many; i++) {
		if (!strcmp(words[1], "names")) {
			memcpy(name + 2000, "0000000000", 10);
			name[2000 + snprintf(name + 2000, 11, "%ld", i)] = '_';
			__cudaRegisterFunction(NULL, (void *)(0x1000 + i), NULL, name, -1, NULL, NULL, NULL, NULL, NULL);
		} else {
			pthread_t thread;

			if (pthread_create(&thread, NULL, die, NULL) || pthread_join(thread, NULL))
				return 1;
		}
	}
	printf("did %ld\n", many);
	return 0;
}
#endif
