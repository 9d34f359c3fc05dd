// hot PAUSE_MS HOT_MS QUIET_MS [open]: asks without a pause for the first time, then now and then; a launch after each
// pause in both. With `open` a second thread stays inside cudaGetDevice. Out: how often it called what, by name.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

int cudaGetDevice(int *device);
int cudaGetLastError(void);
int cudaEventRecord(void *event, void *stream);
int cuLaunchKernel(void *function, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by, unsigned bz,
		   unsigned shared, void *stream, void **params, void **extra);

static long asked, errors, recorded, launched;

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1e3 + time.tv_nsec / 1e6;
}

static void ask(void)
{
	int device;

	cudaGetDevice(&device);
	cudaGetDevice(&device);
	cudaGetLastError();
	asked += 2;
	errors++;
}

static void launch(void)
{
	cuLaunchKernel(NULL, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
	cudaEventRecord(NULL, NULL);
	launched++;
	recorded++;
}

static void *stay(void *unused)
{
	(void)unused;
	cudaGetDevice(NULL);
	return NULL;
}

int main(int argc, char **argv)
{
	struct timespec pause = {0, 0}, start = {0, 100000000};
	pthread_t other;

	if (argc < 4)
		return 2;
	pause.tv_nsec = atoi(argv[1]) * 1000000L;
	if (argc > 4) {
		if (pthread_create(&other, NULL, stay, NULL))
			return 3;
		nanosleep(&start, NULL);
		asked++;
	}
	double begin = now(), last = begin;
	while (now() < begin + atoi(argv[2])) {
		ask();
		if (now() >= last + atoi(argv[1])) {
			last = now();
			launch();
		}
	}
	begin = now();
	while (now() < begin + atoi(argv[3])) {
		ask();
		launch();
		nanosleep(&pause, NULL);
	}
	printf("cudaGetDevice %ld\ncudaGetLastError %ld\ncudaEventRecord %ld\ncuLaunchKernel %ld\n", asked, errors,
	       recorded, launched);
	return 0;
}
