/*
 * Copies records of any length from scratch memory (capture.h) into a ring.
 */
#ifndef GPUREC_SEND_H
#define GPUREC_SEND_H

/* Sizes of records with a payload. Space in a ring is reserved in sizes that are known at load time; the unused rest
 * is never read. Kernel names, of which a large library registers tens of thousands at once, come in every length. */
#define SIZES(each) each(192) each(384) each(768) each(1536) each(3072) each(GPUREC_PAYLOAD + 128)

/* Copies a record from the scratch memory into the ring. The time is taken after the space is reserved. Returns that
 * time, or 0 if there was no space. */
#define SEND(size, room)                                                      \
	({                                                                    \
		struct gpurec_head *to_ = room(size);                         \
		u64 ts_ = 0;                                                  \
		if (to_) {                                                    \
			bpf_probe_read_kernel(to_, size, s);                  \
			to_->ts = ts_ = bpf_ktime_get_ns();                   \
			submit(to_);                                          \
		}                                                             \
		ts_;                                                          \
	})

#endif
