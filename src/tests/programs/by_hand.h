// Ways to come to a library that a recorder may overlook: mapped by hand, readable, and made executable afterwards, as
// the loaders of some programs do it; or in a file that was something else before.
// In: a library that needs no relocation, and a file to be written. Out: the library's functions, or the file; 0, NULL
// and a negative number where that failed.
#include <elf.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/personality.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PAGES(bytes) (((bytes) + 4095) & ~4095ul)
enum { BY_HAND = 1 << 20 };

/* Makes what is mapped readable executable; gives where it is then. */
typedef char *make_executable(char *at, size_t length, int fd, off_t offset);

static inline char *by_mprotect(char *at, size_t length, int fd, off_t offset)
{
	(void)fd, (void)offset;
	return mprotect(at, length, PROT_READ | PROT_EXEC) ? NULL : at;
}

/* A read-only map of a file at a place, of each part that is to be loaded; returns where address 0 of it is. */
static inline char *by_hand(const char *path, make_executable *make)
{
	Elf64_Phdr parts[16];
	Elf64_Ehdr head;
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	char *base = mmap(NULL, BY_HAND, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (fd < 0 || base == MAP_FAILED || pread(fd, &head, sizeof(head), 0) != sizeof(head) || head.e_phnum > 16)
		return NULL;
	if (pread(fd, parts, head.e_phnum * sizeof(*parts), (off_t)head.e_phoff) < 0)
		return NULL;
	for (Elf64_Phdr *part = parts; part < parts + head.e_phnum; part++) {
		size_t before = part->p_offset & 4095, length = part->p_filesz + before;
		int protection = part->p_flags & PF_W ? PROT_READ | PROT_WRITE : PROT_READ;
		char *at = base + part->p_vaddr - before;
		off_t offset = (off_t)(part->p_offset - before);

		if (part->p_type != PT_LOAD)
			continue;
		if (mmap(at, length, protection, MAP_PRIVATE | MAP_FIXED, fd, offset) != at)
			return NULL;
		if ((part->p_flags & PF_X) && make(at, PAGES(length), fd, offset) != at)
			return NULL;
	}
	close(fd);
	return base;
}

static inline void *function_in(const char *path, const char *base, const char *name)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	const char *file = mmap(NULL, BY_HAND, PROT_READ, MAP_PRIVATE, fd, 0);
	const Elf64_Ehdr *head = (const void *)file;
	const Elf64_Shdr *all;
	void *found = NULL;

	close(fd);
	if (file == MAP_FAILED)
		return NULL;
	all = (const void *)(file + head->e_shoff);
	for (int i = 0; i < head->e_shnum; i++) {
		const Elf64_Sym *symbols = (const void *)(file + all[i].sh_offset);
		const char *names = file + all[all[i].sh_link].sh_offset;

		for (size_t s = 0; all[i].sh_type == SHT_DYNSYM && s < all[i].sh_size / sizeof(*symbols); s++)
			if (!strcmp(names + symbols[s].st_name, name))
				found = (void *)(base + symbols[s].st_value);
	}
	munmap((void *)file, BY_HAND);
	return found;
}

/* Into what is there, as cp does it. */
static inline int copy_into(const char *library, const char *path)
{
	int from = open(library, O_RDONLY | O_CLOEXEC);
	int to = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0755);
	ssize_t length = sendfile(to, from, NULL, BY_HAND);

	close(from);
	return !close(to) && length > 0;
}

static inline uint64_t number_of(const char *path)
{
	struct stat about;

	return stat(path, &about) ? 0 : about.st_ino;
}

/* A file that is no library, mapped as code: a recorder looks at it. Returns its number. */
static inline uint64_t plain_file(const char *path)
{
	int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0755);
	void *at = write(fd, "plain", 5) == 5 ? mmap(NULL, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE, fd, 0) : MAP_FAILED;

	close(fd);
	return at == MAP_FAILED || munmap(at, 4096) ? 0 : number_of(path);
}

/* The library in a file that has the number of another, which was looked at and is gone. */
static inline int same_number(const char *library, const char *path)
{
	for (int tries = 0; tries < 100; tries++) {
		uint64_t number = plain_file(path);

		if (!number || unlink(path) || !copy_into(library, path))
			return 0;
		if (number_of(path) == number)
			return 1;
		unlink(path);
	}
	return 0;
}

static inline int overwritten(const char *library, const char *path)
{
	return plain_file(path) && copy_into(library, path);
}
