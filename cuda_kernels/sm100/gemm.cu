// GEMM by TMA and the tensor cores' own memory: y = x @ dequantize(w).T, weights as the 128-row operand.
//
//   w         [N, K]  codes, K contiguous: bytes, or 4- and 6-bit codes that the tensor map spreads over 16-byte slots
//   x         [M, K]  codes, K contiguous
//   w_scales  [N / 128][K / (4 block)][32][16]  tiles of 128 x 4 scale codes, VECTOR > 0 alone;  x_scales  the same of x
//   y         [M, N]  y[m, n] = acc * scale[n] * secondary[n] * x_scale[m] * x_global + bias[n], rounded once
//
// On SM100 and SM103 one thread issues tcgen05.mma and tensor memory holds the accumulator; with CTAS = 2 a pair of CTAs works on
// 256 rows and each loads half of x. On SM90, the sibling, two warpgroups issue wgmma. Producer, barriers, tile order and
// epilogue are the same code. Persistent: the grid is a multiple of CTAS, and CTAs take tiles in turn.
//
// The host sets, as macros: KIND, DESCRIPTOR (SM100; hidden types are set in it), SHAPE, TYPES, TRANSPOSE (SM90), VECTOR (scales
// of one row and instruction: 0, 1, 2 or 4), CTAS, BLOCK_M, STAGES, STEP_COLUMNS (of a tensor map in 128 bytes), OUT, SCALE,
// SECONDARY, X_SCALE, BIAS (types of `load_real`, 0: absent), X_GLOBAL (0 or 1).
#include "ptx.cuh"
#if __CUDA_ARCH__ >= 1000
#include "tensor_memory.cuh"
#define CONSUMER_WARPS 5 /* one issues, four store */
#else
#include "warpgroup.cuh"
#define CONSUMER_WARPS 8
#endif

enum : int {
  ROWS = 128,         // weight rows of a CTA
  STEP_BYTES = 128,   // of K in a stage
  INSTRUCTIONS = 4,   // of 32 bytes of K each
  X_ROWS = BLOCK_M / CTAS,
  SCALE_TILES = VECTOR, // tiles of 128 x 4 scales that a stage's four instructions read
  X_TILES = BLOCK_M > 128 ? 2 : 1,
  TILE_BYTES = 512,
  W_BYTES = ROWS * STEP_BYTES,
  X_BYTES = X_ROWS * STEP_BYTES,
  SCALE_BYTES = SCALE_TILES * TILE_BYTES, // of 128 rows
  LOADED_BYTES = W_BYTES + X_BYTES + (1 + X_TILES) * SCALE_BYTES,
  STAGE_BYTES = (LOADED_BYTES + 1023) / 1024 * 1024,
  ACCUMULATORS = BLOCK_M <= 128 ? 2 : 1,
  THREADS = 32 * (CONSUMER_WARPS + (__CUDA_ARCH__ >= 1000 ? 1 : 4)),
};

struct Factors {
  const void *scale, *secondary, *x_scale, *x_global, *bias;
  int scale_stride, secondary_stride, x_scale_stride;
};

// Everything between accumulator and store, for one element.
DEVICE void finish(void *y, long y_stride, const Factors &f, int m, int n, float row_factor, float row_bias, float value) {
  value *= row_factor;
#if X_SCALE
  value *= load_real<X_SCALE>(f.x_scale, (long)m * f.x_scale_stride);
#endif
#if X_GLOBAL
  value *= *(const float *)f.x_global;
#endif
  store_real<OUT>(y, m * y_stride + n, value + row_bias);
}
DEVICE float factor_of_row(const Factors &f, int n) {
  float factor = 1.0f;
#if SCALE
  factor *= load_real<SCALE>(f.scale, (long)n * f.scale_stride);
#endif
#if SECONDARY
  factor *= load_real<SECONDARY>(f.secondary, (long)n * f.secondary_stride);
#endif
  return factor;
}
DEVICE float bias_of_row(const Factors &f, int n) {
#if BIAS
  return load_real<BIAS>(f.bias, n);
#else
  return 0.0f;
#endif
}

// Weight rows advance first, so that CTAs that run together share x.
struct Tiles {
  int rows, count;
  DEVICE Tiles(int M, int N) : rows((N + ROWS * CTAS - 1) / (ROWS * CTAS)), count(rows * ((M + BLOCK_M - 1) / BLOCK_M)) {}
  DEVICE int n(int tile) const { return tile % rows * (ROWS * CTAS); }
  DEVICE int m(int tile) const { return tile / rows * BLOCK_M; }
};

// A position in a ring of barriers: phases alternate each time round.
template <int SIZE> struct Ring {
  u32 index = 0, phase = 0;
  DEVICE void next() {
    if (++index == SIZE) index = 0, phase ^= 1;
  }
};

#if CTAS == 2
#define CLUSTER __cluster_dims__(2, 1, 1)
#else
#define CLUSTER
#endif
extern "C" __global__ void CLUSTER __launch_bounds__(THREADS, 1)
gemm(const __grid_constant__ TensorMap w_map, const __grid_constant__ TensorMap x_map, const __grid_constant__ TensorMap w_scale_map,
     const __grid_constant__ TensorMap x_scale_map, void *y, const __grid_constant__ Factors factors, int M, int N, int steps,
     int scale_columns, long y_stride) {
  extern __shared__ __align__(1024) u8 memory[];
  __shared__ u64 full_barriers[STAGES], empty_barriers[STAGES], done_barriers[ACCUMULATORS], free_barriers[ACCUMULATORS];
  __shared__ u32 tensor_address;
  const u32 warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
  const u32 rank = CTAS == 2 ? cluster_rank() : 0;
  const u32 stages = (shared_address(memory) + 1023) & ~1023u;
  const u32 full = shared_address(full_barriers), empty = shared_address(empty_barriers);
  const u32 done = shared_address(done_barriers), free = shared_address(free_barriers);
  const Tiles tiles(M, N);
  const int first = blockIdx.x / CTAS, stride = gridDim.x / CTAS;

  if (threadIdx.x == 0) {
    for (int i = 0; i < STAGES; i++) {
      barrier_init(full + 8 * i, 1);
      barrier_init(empty + 8 * i, __CUDA_ARCH__ >= 1000 ? 1 : CONSUMER_WARPS);
    }
    for (int i = 0; i < ACCUMULATORS; i++) {
      barrier_init(done + 8 * i, 1);
      barrier_init(free + 8 * i, 4 * CTAS);
    }
    barrier_init_done();
  }
#if __CUDA_ARCH__ >= 1000
  if (warp == 1) tensor_alloc(shared_address(&tensor_address), 512);
  tensor_fence_before();
#endif
  if (CTAS == 2) cluster_sync(); else __syncthreads();

  if (warp == 0) { // ---- producer: TMA into the ring of stages
    if (elect()) {
      tma_prefetch(&w_map);
      tma_prefetch(&x_map);
      Ring<STAGES> ring;
      const u32 leader_full = CTAS == 2 ? mapped(full, 0) : full;
      for (int tile = first; tile < tiles.count; tile += stride) {
        const int n = tiles.n(tile) + rank * ROWS, m = tiles.m(tile);
        for (int step = 0; step < steps; step++, ring.next()) {
          const u32 target = stages + ring.index * STAGE_BYTES, barrier = leader_full + 8 * ring.index;
          barrier_wait(empty + 8 * ring.index, ring.phase ^ 1);
          if (rank == 0) barrier_expect(full + 8 * ring.index, LOADED_BYTES * CTAS);
          tma_load(target, &w_map, step * STEP_COLUMNS, n, barrier);
          tma_load(target + W_BYTES, &x_map, step * STEP_COLUMNS, m + rank * X_ROWS, barrier);
#if VECTOR
          const int column = step * SCALE_TILES;
          tma_load(target + W_BYTES + X_BYTES, &w_scale_map, 0, n / 128 * scale_columns + column, barrier);
          for (int i = 0; i < X_TILES; i++)
            tma_load(target + W_BYTES + X_BYTES + (1 + i) * SCALE_BYTES, &x_scale_map, 0,
                           (m / 128 + i) * scale_columns + column, barrier);
#endif
        }
      }
    }
  }
#if __CUDA_ARCH__ >= 1000
  else if (warp == 1) { // ---- one thread of the pair's first CTA multiplies
    if (rank == 0 && elect()) {
      tensor_fence_after();
      const u32 w_scales = tensor_address + ACCUMULATORS * BLOCK_M, x_scales = w_scales + 4 * SCALE_TILES;
      Ring<STAGES> ring;
      Ring<ACCUMULATORS> out;
      for (int tile = first; tile < tiles.count; tile += stride, out.next()) {
        const u32 d = tensor_address + out.index * BLOCK_M;
        barrier_wait(free + 8 * out.index, out.phase ^ 1);
        tensor_fence_after();
        for (int step = 0; step < steps; step++, ring.next()) {
          const u32 source = stages + ring.index * STAGE_BYTES;
          barrier_wait(full + 8 * ring.index, ring.phase);
          tensor_fence_after();
          const u64 w = operand_descriptor(source), x = operand_descriptor(source + W_BYTES);
#if VECTOR
          const u64 tile_descriptor = scale_descriptor(source + W_BYTES + X_BYTES);
#pragma unroll
          for (int i = 0; i < SCALE_TILES; i++) {
            scales_to_tensor(w_scales + 4 * i, tile_descriptor + i * (TILE_BYTES >> 4));
            for (int half = 0; half < X_TILES; half++)
              scales_to_tensor(x_scales + 4 * (i * X_TILES + half), tile_descriptor + ((1 + half) * SCALE_TILES + i) * (TILE_BYTES >> 4));
          }
#endif
#pragma unroll
          for (int i = 0; i < INSTRUCTIONS; i++) {
            const u32 scale = i * VECTOR / 4, id = i * VECTOR % 4; // which tile, and the first byte of a row's four scales
            umma(d, w + 2 * i, x + 2 * i, DESCRIPTOR | id << 4 | id << 29, w_scales + 4 * scale,
                 x_scales + 4 * X_TILES * scale + tiles.m(tile) % 128 / 32, (step | i) != 0);
          }
          umma_commit(empty + 8 * ring.index);
        }
        umma_commit(done + 8 * out.index);
      }
    }
  } else { // ---- four warps store; a warp reaches the 32 lanes of its number modulo 4
    Ring<ACCUMULATORS> out;
    const u32 part = warp % 4, leader_free = CTAS == 2 ? mapped(free, 0) : free;
    for (int tile = first; tile < tiles.count; tile += stride, out.next()) {
      const int n = tiles.n(tile) + rank * ROWS + part * 32 + lane, m = tiles.m(tile);
      const float factor = n < N ? factor_of_row(factors, n) : 0.0f, bias = n < N ? bias_of_row(factors, n) : 0.0f;
      barrier_wait(done + 8 * out.index, out.phase);
      tensor_fence_after();
      for (int column = 0; column < BLOCK_M; column += 8) {
        u32 value[8];
        tensor_load8(tensor_address + out.index * BLOCK_M + column + (part * 32 << 16), value);
        for (int i = 0; i < 8; i++)
          if (n < N && m + column + i < M) finish(y, y_stride, factors, m + column + i, n, factor, bias, __uint_as_float(value[i]));
      }
      tensor_fence_before();
      __syncwarp();
      if (lane == 0) barrier_arrive_cluster(leader_free + 8 * out.index);
    }
  }
  tensor_fence_before();
  if (CTAS == 2) cluster_sync(); else __syncthreads();
  tensor_fence_after();
  if (warp == 1) tensor_free(tensor_address, 512);
#else
  else if (warp >= 4) { // ---- two warpgroups multiply and store 64 rows each
    const u32 group = (warp - 4) / 4;
    Ring<STAGES> ring;
    for (int tile = first; tile < tiles.count; tile += stride) {
      float d[BLOCK_M / 2];
      for (int i = 0; i < BLOCK_M / 2; i++) d[i] = 0.0f;
      for (int step = 0; step < steps; step++, ring.next()) {
        const u32 source = stages + ring.index * STAGE_BYTES;
        barrier_wait(full + 8 * ring.index, ring.phase);
        const u64 w = operand_descriptor(source + group * 64 * STEP_BYTES), x = operand_descriptor(source + W_BYTES);
        warpgroup_fence();
#pragma unroll
        for (int i = 0; i < INSTRUCTIONS; i++) wgmma(d, w + 2 * i, x + 2 * i, (step | i) != 0);
        warpgroup_commit();
        warpgroup_wait();
        if (lane == 0) barrier_arrive(empty + 8 * ring.index);
      }
      for (int half = 0; half < 2; half++) {
        const int n = tiles.n(tile) + group * 64 + warp % 4 * 16 + lane / 4 + 8 * half;
        if (n >= N) continue;
        const float factor = factor_of_row(factors, n), bias = bias_of_row(factors, n);
#pragma unroll
        for (int i = 0; i < BLOCK_M / 4; i++) { // two neighbouring columns of eight, half by half
          const int m = tiles.m(tile) + i / 2 * 8 + lane % 4 * 2 + i % 2;
          if (m < M) finish(y, y_stride, factors, m, n, factor, bias, d[i / 2 * 4 + half * 2 + i % 2]);
        }
      }
    }
  }
#endif
}
