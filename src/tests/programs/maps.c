// maps FILE...: maps each file as a program's code would be, then tries to open it as a library in a child,
// which may crash of it. What goes out: "mapped N".
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int count, char **files)
{
	int mapped = 0;

	for (int i = 1; i < count; i++) {
		int fd = open(files[i], O_RDONLY);
		struct stat about;

		if (fd < 0 || fstat(fd, &about))
			return 1;
		mapped += mmap(NULL, (size_t)about.st_size, PROT_READ | PROT_EXEC, MAP_PRIVATE, fd, 0) != MAP_FAILED;
		close(fd);
		pid_t child = fork();
		if (!child) {
			dlopen(files[i], RTLD_NOW);
			_exit(0);
		}
		waitpid(child, NULL, 0);
	}
	printf("mapped %d\n", mapped);
	return 0;
}
