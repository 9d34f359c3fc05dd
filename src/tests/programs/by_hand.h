// A library mapped by hand: readable, and made executable afterwards, as the loaders of some programs do it.
// In: a file without relocations that its functions need, and the way. Out: its functions by name.
#include <elf.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/personality.h>
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
	static char file[BY_HAND];
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t length = read(fd, file, sizeof(file));
	const Elf64_Ehdr *head = (const void *)file;
	const Elf64_Shdr *all = (const void *)(file + head->e_shoff);

	close(fd);
	for (int i = 0; length > 0 && i < head->e_shnum; i++) {
		const Elf64_Sym *symbols = (const void *)(file + all[i].sh_offset);
		const char *names = file + all[all[i].sh_link].sh_offset;

		for (size_t s = 0; all[i].sh_type == SHT_DYNSYM && s < all[i].sh_size / sizeof(*symbols); s++)
			if (!strcmp(names + symbols[s].st_name, name))
				return (void *)(base + symbols[s].st_value);
	}
	return NULL;
}
