"""CUDA C++ sources with the instructions that the editors know, for NVRTC."""

WARP_MMA = """
extern "C" __global__ void k(const unsigned *in, float *out) {
  const unsigned t = threadIdx.x;
  float d[4] = {0, 0, 0, 0};
  for (int i = 0; i < STEPS; i++) {
    const unsigned *p = in + (i * 32 + t) * 8;
    asm volatile("mma.sync.aligned." MMA " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3}" TAIL ";"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(p[0]), "r"(p[1]), "r"(p[2]), "r"(p[3]), "r"(p[4]), "r"(p[5]), "r"(p[6]), "r"(p[7]));
  }
  for (int i = 0; i < 4; i++) out[t * 4 + i] = d[i];
}
"""
QMMA = "m16n8k32.row.col.kind::f8f6f4.f32.{}.{}.f32"
OMMA = "m16n8k64.row.col.kind::mxf4nvf4.block_scale.scale_vec::4X.f32.{}.{}.f32.ue4m3"
SCALES = ", %8, {0, 0}, %9, {0, 0}"

TENSOR_MMA = """
extern "C" __global__ void k(unsigned d, unsigned long long a, unsigned long long b, unsigned sa, unsigned sb) {
#pragma unroll
  for (int i = 0; i < STEPS; i++)
    asm volatile("{ .reg .pred p; setp.ne.u32 p, %4, 0; tcgen05.mma.cta_group::1.kind::" KIND " [%0], %1, %2, %3" TAIL ", p; }"
      :: "r"(d), "l"(a + 2 * i), "l"(b + 2 * i), "r"(DESCRIPTOR), "r"(i), "r"(sa), "r"(sb) : "memory");
}
"""
