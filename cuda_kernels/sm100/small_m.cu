// GEMM for few rows by mma.sync: y = x @ dequantize(w).T, 4-bit weights decoded in registers as the 16-row operand.
//
//   w      [K / 128][16][N]  words of the portable layout: word (b, r, n) holds w[n, 128 b + 16 s + r] in bits 4 s to 4 s + 3
//   x      [M, K]  bf16 or fp16, K contiguous
//   scale  [ceil(K / G)][N]  one for 128 blocks_of_group codes along K
//   y      [M, N]  y[m, n] = sum over groups of scale * (exact products, fp32 sums) + bias[n], rounded once
//
// A lane's eight words of a block hold exactly its fragments of the block's eight m16n8k16 steps: rows n and n + 8, words 2 t,
// 2 t + 1, 2 t + 8, 2 t + 9. WARPS warps take blocks of K in turn; their sums meet in shared memory, in the order of the warps.
//
// The host sets, as macros: WARPS, M_TILES (of 8 rows), X_TYPE (2 bf16, 3 fp16), SCALE, BIAS, OUT (types of `load_real`).
#include "ptx.cuh"

#if X_TYPE == 2
#define MMA "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"
#define FMA "fma.rn.bf16x2"
enum : u32 { MAGIC = 0x43004300, ONE = 0x3f803f80, OFFSET = 0xc308c308 }; // 128 + code, 1, -136
#else
#define MMA "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"
#define FMA "fma.rn.f16x2"
enum : u32 { MAGIC = 0x64006400, ONE = 0x3c003c00, OFFSET = 0xe408e408 }; // 1024 + code, 1, -1032
#endif

// Code s of two words -> the pair (code - 8) as 16-bit floats, exactly.
DEVICE u32 decode(u32 low, u32 high, int s) {
  const u32 codes = (low >> 4 * s & 0xf) | (high >> 4 * s & 0xf) << 16 | MAGIC;
  u32 pair;
  asm(FMA " %0, %1, %2, %3;" : "=r"(pair) : "r"(codes), "r"((u32)ONE), "r"((u32)OFFSET));
  return pair;
}
DEVICE void multiply(float (&d)[4], const u32 (&w)[4], u32 x0, u32 x1) {
  asm volatile(MMA " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3]), "r"(x0), "r"(x1));
}

extern "C" __global__ void __launch_bounds__(32 * WARPS)
small_m(const u32 *w, const u16 *x, const void *scale, const void *bias, void *y, int M, int N, int K, int blocks_of_group,
        long x_stride, long y_stride) {
  __shared__ float sums[WARPS][16][8 * M_TILES];
  const int warp = threadIdx.x / 32, row = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  const int n0 = blockIdx.x * 16, m0 = blockIdx.y * 8 * M_TILES, blocks = (K + 127) / 128;
  float total[M_TILES][4] = {};

  for (int block = warp; block < blocks; block += WARPS) {
    u32 words[2][4]; // [row n or n + 8][word]
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const int n = n0 + row + 8 * half;
#pragma unroll
      for (int i = 0; i < 4; i++) words[half][i] = n < N ? w[((long)block * 16 + 2 * t + i % 2 + i / 2 * 8) * N + n] : 0;
    }
    float part[M_TILES][4] = {};
#pragma unroll
    for (int s = 0; s < 8; s++) {
      u32 fragment[4];
#pragma unroll
      for (int i = 0; i < 4; i++) fragment[i] = decode(words[i % 2][i / 2 * 2], words[i % 2][i / 2 * 2 + 1], s);
#pragma unroll
      for (int tile = 0; tile < M_TILES; tile++) {
        const int m = m0 + 8 * tile + row, k = 128 * block + 16 * s + 2 * t;
        const u16 *source = x + m * x_stride + k;
        const u32 x0 = m < M && k < K ? *(const u32 *)source : 0, x1 = m < M && k + 8 < K ? *(const u32 *)(source + 8) : 0;
        multiply(part[tile], fragment, x0, x1);
      }
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const int n = n0 + row + 8 * half;
      const float factor = n < N ? load_real<SCALE>(scale, (long)(block / blocks_of_group) * N + n) : 0.0f;
#pragma unroll
      for (int tile = 0; tile < M_TILES; tile++)
        for (int i = 0; i < 2; i++) total[tile][2 * half + i] += factor * part[tile][2 * half + i];
    }
  }
#pragma unroll
  for (int tile = 0; tile < M_TILES; tile++)
    for (int i = 0; i < 4; i++) sums[warp][row + i / 2 * 8][8 * tile + 2 * t + i % 2] = total[tile][i];
  __syncthreads();
  for (int i = threadIdx.x; i < 16 * 8 * M_TILES; i += 32 * WARPS) {
    const int n = n0 + i % 16, m = m0 + i / 16;
    if (n >= N || m >= M) continue;
    float value = 0.0f;
    for (int from = 0; from < WARPS; from++) value += sums[from][i % 16][i / 16];
#if BIAS
    value += load_real<BIAS>(bias, n);
#endif
    store_real<OUT>(y, m * y_stride + n, value);
  }
}
