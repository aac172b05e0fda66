// One ldmatrix.x4.trans of a warp: rows at lane * STRIDE, the four result registers of each lane to out. The hidden codes of LDSM are
// edited into its machine code.
extern "C" __global__ void probe(const unsigned *in, unsigned *out) {
  __shared__ __align__(128) unsigned tile[1024];
  for (int i = threadIdx.x; i < 1024; i += 32) tile[i] = in[i];
  __syncthreads();
  unsigned long long generic = (unsigned long long)tile, address;
  asm("cvta.to.shared.u64 %0, %1;" : "=l"(address) : "l"(generic));
  unsigned r[4], row = (unsigned)address + threadIdx.x * STRIDE;
  asm volatile("ldmatrix.sync.aligned.m8n8." COUNT ".trans.shared.b16 " LIST ", [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(row) : "memory");
  for (int i = 0; i < 4; i++) out[threadIdx.x * 4 + i] = r[i];
}
