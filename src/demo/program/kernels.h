/* The demo's kernels, as a CUDA source would declare them: launched by calling
 * the stub. The names are C++ mangled, as nvcc leaves them in a program. */
#ifndef KERNELS_H
#define KERNELS_H

#include "cuda.h"

/* f<<<blocks, threads, 0, stream>>>(...): push, then call the stub. */
#define LAUNCH(stream, blocks, threads, stub, ...)                                                           \
    (__cudaPushCallConfiguration((struct dim3){blocks, 1, 1}, (struct dim3){threads, 1, 1}, 0, stream) ? (void)0 \
                                                                                                       : stub(__VA_ARGS__))

/* void layernorm(float *x, const float *gain, int n) */
void _Z9layernormPfPKfi(float *x, const float *gain, int n);
/* void matmul(const float *w, const float *x, float *y, int n) */
void _Z6matmulPKfS0_Pfi(const float *w, const float *x, float *y, int n);
/* template <int WIDTH> void gelu(float *x, int n), for WIDTH 4 */
void _Z4geluILi4EEvPfi(float *x, int n);
/* void add_residual(float *x, const float *y, int n) */
void _Z12add_residualPfPKfi(float *x, const float *y, int n);
/* void softmax(float *x, int n) */
void _Z7softmaxPfi(float *x, int n);

#endif
