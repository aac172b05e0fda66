// Hopper's wgmma with both operands in shared memory: D [64, BLOCK_M] of a warpgroup += w [64, 32 bytes] x [BLOCK_M, 32 bytes].T.
#pragma once
#include "ptx.cuh"

// Operand tile [rows][128 bytes of K], 128-byte swizzle, eight rows to 1024 bytes.
DEVICE u64 operand_descriptor(u32 address) {
  return (u64)((address >> 4) & 0x3fff) | (u64)1 << 16 | (u64)(1024 >> 4) << 32 | (u64)1 << 62;
}
DEVICE void warpgroup_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE void warpgroup_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
DEVICE void warpgroup_wait() { asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory"); }

#define F8(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define R8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define R16 R8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define R32 R16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define R64 R32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47" \
  ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"

// SHAPE and the operand types come from the host ("m64n64k32" and ".f32.e4m3.e4m3"), TRANSPOSE is ", 0, 0" for 16-bit types.
#define WGMMA(LIST, W, X, P) "{ .reg .pred p; setp.ne.u32 p, " P ", 0; wgmma.mma_async.sync.aligned." SHAPE TYPES \
  " {" LIST "}, " W ", " X ", p, 1, 1" TRANSPOSE "; }"
DEVICE void wgmma(float (&d)[BLOCK_M / 2], u64 w, u64 x, u32 accumulate) {
#if BLOCK_M == 16
  asm volatile(WGMMA(R8, "%8", "%9", "%10") : F8(0) : "l"(w), "l"(x), "r"(accumulate) : "memory");
#elif BLOCK_M == 32
  asm volatile(WGMMA(R16, "%16", "%17", "%18") : F8(0), F8(8) : "l"(w), "l"(x), "r"(accumulate) : "memory");
#elif BLOCK_M == 64
  asm volatile(WGMMA(R32, "%32", "%33", "%34") : F8(0), F8(8), F8(16), F8(24) : "l"(w), "l"(x), "r"(accumulate) : "memory");
#elif BLOCK_M == 128
  asm volatile(WGMMA(R64, "%64", "%65", "%66")
               : F8(0), F8(8), F8(16), F8(24), F8(32), F8(40), F8(48), F8(56) : "l"(w), "l"(x), "r"(accumulate) : "memory");
#else
#error "BLOCK_M is 16, 32, 64 or 128 on SM90"
#endif
}
