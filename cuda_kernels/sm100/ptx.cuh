// Instructions that Hopper and Blackwell share: mbarriers, TMA loads, clusters. Addresses are 32-bit shared addresses.
#pragma once
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
#define DEVICE __device__ __forceinline__

struct alignas(64) TensorMap { u64 opaque[16]; };

DEVICE u32 shared_address(const void *pointer) {
  u64 address;
  asm("cvta.to.shared.u64 %0, %1;" : "=l"(address) : "l"(pointer));
  return (u32)address;
}

// One lane of a converged warp; the compiler keeps the branch uniform.
DEVICE bool elect() {
  u32 chosen;
  asm volatile("{ .reg .pred p; elect.sync _|p, 0xffffffff; selp.u32 %0, 1, 0, p; }" : "=r"(chosen));
  return chosen;
}

DEVICE void barrier_init(u32 barrier, u32 arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
DEVICE void barrier_init_done() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

// Arrive once and expect that many bytes from TMA in this phase.
DEVICE void barrier_expect(u32 barrier, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
DEVICE void barrier_arrive(u32 barrier) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory"); }
// The same on a barrier of the cluster's CTA that `mapped` put into the address.
DEVICE void barrier_arrive_cluster(u32 barrier) {
  asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}
DEVICE void barrier_wait(u32 barrier, u32 parity) {
  u32 done;
  do {
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                 : "=r"(done) : "r"(barrier), "r"(parity) : "memory");
  } while (!done);
}

#ifndef CTAS
#define CTAS 1
#endif
#if CTAS == 2
#define TMA_GROUP ".cta_group::2"  // the barrier may be the one of the pair's other CTA
#else
#define TMA_GROUP ""
#endif
// Box at (x, y) of a tensor map -> shared memory; its bytes count on the barrier.
DEVICE void tma_load(u32 target, const TensorMap *map, int x, int y, u32 barrier) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes" TMA_GROUP " [%0], [%1, {%2, %3}], [%4];"
               ::"r"(target), "l"(map), "r"(x), "r"(y), "r"(barrier) : "memory");
}
DEVICE void tma_prefetch(const TensorMap *map) { asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory"); }

DEVICE u32 cluster_rank() {
  u32 rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
// The address of the same variable in CTA `rank` of the cluster.
DEVICE u32 mapped(u32 address, u32 rank) {
  u32 other;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(other) : "r"(address), "r"(rank));
  return other;
}
DEVICE void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// Real numbers of a type that the host names: 1 fp32, 2 bf16, 3 fp16.
template <int TYPE> DEVICE float load_real(const void *pointer, long index) {
  if constexpr (TYPE == 1) return ((const float *)pointer)[index];
  const u16 bits = ((const u16 *)pointer)[index];
  if constexpr (TYPE == 2) return __uint_as_float((u32)bits << 16);
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
}
template <int TYPE> DEVICE void store_real(void *pointer, long index, float value) {
  if constexpr (TYPE == 1) {
    ((float *)pointer)[index] = value;
  } else {
    u16 bits;
    if constexpr (TYPE == 2) asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    else asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    ((u16 *)pointer)[index] = bits;
  }
}
