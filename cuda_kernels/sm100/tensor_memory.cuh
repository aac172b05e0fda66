// Blackwell's tcgen05 (SM100, SM103, SM110): tensor memory, scale copies, UMMA. One or two CTAs, chosen by the macro CTAS.
#pragma once
#include "ptx.cuh"
#if CTAS == 2
#define GROUP "cta_group::2"
#else
#define GROUP "cta_group::1"
#endif

// A whole warp. The address goes to shared memory.
DEVICE void tensor_alloc(u32 target, u32 columns) {
  asm volatile("tcgen05.alloc." GROUP ".sync.aligned.shared::cta.b32 [%0], %1;" ::"r"(target), "r"(columns) : "memory");
  asm volatile("tcgen05.relinquish_alloc_permit." GROUP ".sync.aligned;");
}
DEVICE void tensor_free(u32 address, u32 columns) {
  asm volatile("tcgen05.dealloc." GROUP ".sync.aligned.b32 %0, %1;" ::"r"(address), "r"(columns));
}
DEVICE void tensor_fence_after() { asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory"); }
DEVICE void tensor_fence_before() { asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory"); }

// Operand tile [rows][128 bytes of K], 128-byte swizzle, eight rows to 1024 bytes.
DEVICE u64 operand_descriptor(u32 address) {
  return (u64)((address >> 4) & 0x3fff) | (u64)(1024 >> 4) << 32 | (u64)1 << 46 | (u64)2 << 61;
}
// Scale tile [32][16 bytes], no swizzle, eight rows to 128 bytes.
DEVICE u64 scale_descriptor(u32 address) { return (u64)((address >> 4) & 0x3fff) | (u64)(128 >> 4) << 32 | (u64)1 << 46; }

// One 128 x 4 tile of scales (512 bytes) -> four columns of tensor memory, in each of the four parts of 32 lanes.
DEVICE void scales_to_tensor(u32 target, u64 source) {
  asm volatile("tcgen05.cp." GROUP ".32x128b.warpx4 [%0], %1;" ::"r"(target), "l"(source) : "memory");
}

DEVICE void umma(u32 d, u64 w, u64 x, u32 descriptor, u32 w_scales, u32 x_scales, u32 accumulate) {
#if VECTOR
  asm volatile("{ .reg .pred p; setp.ne.u32 p, %6, 0; tcgen05.mma." GROUP ".kind::" KIND " [%0], %1, %2, %3, [%4], [%5], p; }"
               ::"r"(d), "l"(w), "l"(x), "r"(descriptor), "r"(w_scales), "r"(x_scales), "r"(accumulate) : "memory");
#else
  asm volatile("{ .reg .pred p; setp.ne.u32 p, %4, 0; tcgen05.mma." GROUP ".kind::" KIND " [%0], %1, %2, %3, p; }"
               ::"r"(d), "l"(w), "l"(x), "r"(descriptor), "r"(accumulate) : "memory");
#endif
}

// Arrive on the barrier, of both CTAs if there are two, when every product issued so far is done.
DEVICE void umma_commit(u32 barrier) {
#if CTAS == 2
  asm volatile("tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [%0], %1;"
               ::"r"(barrier), "h"((u16)3) : "memory");
#else
  asm volatile("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];" ::"r"(barrier) : "memory");
#endif
}

// Eight columns of this warp's 32 lanes.
DEVICE void tensor_load8(u32 address, u32 (&r)[8]) {
  asm volatile("tcgen05.ld.sync.aligned.32x32b.x8.b32 {%0, %1, %2, %3, %4, %5, %6, %7}, [%8];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]), "=r"(r[4]), "=r"(r[5]), "=r"(r[6]), "=r"(r[7]) : "r"(address));
  asm volatile("tcgen05.wait::ld.sync.aligned;" ::: "memory");
}
