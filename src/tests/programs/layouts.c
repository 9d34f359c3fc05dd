// The structures of CUDA's headers, written down from their documentation, and where the compiler puts their
// fields. Out: a line for each field that a trace shows: STRUCTURE FIELD OFFSET TYPE. A field without a name (-)
// stands for the whole structure. Nothing of the recorder goes in here: it is what the recorder is held against.
#include <stddef.h>
#include <stdio.h>

typedef unsigned long long u64;
typedef unsigned int u32;
typedef void *pointer;
typedef int enumeration;
typedef struct { u32 x, y, z; } dim3;
typedef struct { u32 id, pad; unsigned char value[64]; } attribute;
typedef struct { dim3 grid, block; u32 shared; pointer stream; attribute *attrs; u32 count; } CUlaunchConfig;
typedef struct { dim3 grid, block; size_t shared; pointer stream; attribute *attrs; u32 count; } cudaLaunchConfig_t;
typedef struct {
	size_t srcXInBytes, srcY;
	enumeration srcMemoryType;
	pointer srcHost, srcDevice, srcArray;
	size_t srcPitch, dstXInBytes, dstY;
	enumeration dstMemoryType;
	pointer dstHost, dstDevice, dstArray;
	size_t dstPitch, WidthInBytes, Height;
} CUDA_MEMCPY2D;
typedef struct {
	size_t srcXInBytes, srcY, srcZ, srcLOD;
	enumeration srcMemoryType;
	pointer srcHost, srcDevice, srcArray, srcContext;
	size_t srcPitch, srcHeight, dstXInBytes, dstY, dstZ, dstLOD;
	enumeration dstMemoryType;
	pointer dstHost, dstDevice, dstArray, dstContext;
	size_t dstPitch, dstHeight, WidthInBytes, Height, Depth;
} CUDA_MEMCPY3D;
typedef struct { size_t x, y, z; } cudaPos;
typedef struct { pointer ptr; size_t pitch, xsize, ysize; } cudaPitchedPtr;
typedef struct { size_t width, height, depth; } cudaExtent;
typedef struct {
	pointer srcArray;
	cudaPos srcPos;
	cudaPitchedPtr srcPtr;
	pointer dstArray;
	cudaPos dstPos;
	cudaPitchedPtr dstPtr;
	cudaExtent extent;
	enumeration kind;
} cudaMemcpy3DParms;
typedef struct {
	pointer srcArray;
	cudaPos srcPos;
	cudaPitchedPtr srcPtr;
	int srcDevice;
	pointer dstArray;
	cudaPos dstPos;
	cudaPitchedPtr dstPtr;
	int dstDevice;
	cudaExtent extent;
} cudaMemcpy3DPeerParms;
typedef struct { enumeration type; int id; } location;
typedef struct { enumeration type, requestedHandleTypes; location at; pointer win32; unsigned char flags[8]; } CUmemAllocationProp;
typedef struct { location at; enumeration flags; } accessDesc;
typedef struct { pointer func; dim3 grid, block; u32 shared; pointer *params, *extra, kern, ctx; } kernelNode;
typedef struct { u32 type, reserved[3]; u64 ofTheKind[29], reserved2; } anyNode;
typedef struct { pointer dst; size_t pitch; u32 value, elementSize; size_t width, height; } memsetNode;
typedef struct { pointer fn, userData; } hostNode;
typedef struct { size_t Width, Height; enumeration Format; u32 NumChannels; } CUDA_ARRAY_DESCRIPTOR;
typedef struct { size_t Width, Height, Depth; enumeration Format; u32 NumChannels, Flags; } CUDA_ARRAY3D_DESCRIPTOR;
typedef struct {
	enumeration allocType, handleTypes;
	location at;
	pointer win32;
	size_t maxSize;
	unsigned short usage;
	unsigned char reserved[54];
} poolProps;
typedef struct { poolProps props; const accessDesc *access; size_t count, bytesize; pointer dptr; } allocNode;
typedef struct { u32 numDevices; size_t size; u64 handleTypes, flags; } CUmulticastObjectProp;
typedef struct { enumeration type; int device; pointer devicePointer, hostPointer; } cudaPointerAttributes;
typedef struct {
	size_t sharedSizeBytes, constSizeBytes, localSizeBytes;
	int maxThreadsPerBlock, numRegs, ptxVersion, binaryVersion, cacheModeCA, maxDynamicSharedSizeBytes;
} cudaFuncAttributes;
typedef struct { int x, y, z, w; enumeration f; } cudaChannelFormatDesc;

#define F(of, structure, shown, member, type) \
	printf("%s %s %zu %s\n", of, shown, offsetof(structure, member), type);
#define S(structure, member, type) F(#structure, structure, #member, member, type)

static void launches(void)
{
	F("CUlaunchConfig", CUlaunchConfig, "grid", grid, "dim3")
	S(CUlaunchConfig, block, "dim3") S(CUlaunchConfig, shared, "u32") S(CUlaunchConfig, stream, "ptr")
	S(cudaLaunchConfig_t, grid, "dim3") S(cudaLaunchConfig_t, block, "dim3")
	S(cudaLaunchConfig_t, shared, "u64") S(cudaLaunchConfig_t, stream, "ptr")
	F("attributes", CUlaunchConfig, "attrs", attrs, "ptr") F("attributes", CUlaunchConfig, "count", count, "u32")
	F("attributes", attribute, "value", value, "u32")
	printf("attributes each %zu u32\n", sizeof(attribute));
}

static void copies(void)
{
#define M(member, type) S(CUDA_MEMCPY2D, member, type)
	M(srcXInBytes, "u64") M(srcY, "u64") M(srcMemoryType, "enum=CUmemorytype") M(srcHost, "ptr")
	M(srcDevice, "ptr") M(srcArray, "ptr") M(srcPitch, "u64") M(dstXInBytes, "u64") M(dstY, "u64")
	M(dstMemoryType, "enum=CUmemorytype") M(dstHost, "ptr") M(dstDevice, "ptr") M(dstArray, "ptr")
	M(dstPitch, "u64") M(WidthInBytes, "u64") M(Height, "u64")
	const char *both[] = {"CUDA_MEMCPY3D", "CUDA_MEMCPY3D_PEER"};
#define N(member, type) F(both[i], CUDA_MEMCPY3D, #member, member, type)
	for (int i = 0; i < 2; i++) {
		N(srcXInBytes, "u64") N(srcY, "u64") N(srcZ, "u64") N(srcMemoryType, "enum=CUmemorytype")
		N(srcHost, "ptr") N(srcDevice, "ptr") N(srcArray, "ptr") N(srcPitch, "u64") N(srcHeight, "u64")
		N(dstXInBytes, "u64") N(dstY, "u64") N(dstZ, "u64") N(dstMemoryType, "enum=CUmemorytype")
		N(dstHost, "ptr") N(dstDevice, "ptr") N(dstArray, "ptr") N(dstPitch, "u64") N(dstHeight, "u64")
		N(WidthInBytes, "u64") N(Height, "u64") N(Depth, "u64")
	}
	for (int i = 1; i < 2; i++) {
		N(srcContext, "ptr") N(dstContext, "ptr")
	}
#define P(shown, member, type) F("cudaMemcpy3DParms", cudaMemcpy3DParms, shown, member, type)
	P("srcArray", srcArray, "ptr") P("srcPtr", srcPtr.ptr, "ptr") P("srcPitch", srcPtr.pitch, "u64")
	P("dstArray", dstArray, "ptr") P("dstPtr", dstPtr.ptr, "ptr") P("dstPitch", dstPtr.pitch, "u64")
	P("width", extent.width, "u64") P("height", extent.height, "u64") P("depth", extent.depth, "u64")
	P("kind", kind, "enum=cudaMemcpyKind")
#define Q(shown, member, type) F("cudaMemcpy3DPeerParms", cudaMemcpy3DPeerParms, shown, member, type)
	Q("srcArray", srcArray, "ptr") Q("srcPtr", srcPtr.ptr, "ptr") Q("srcPitch", srcPtr.pitch, "u64")
	Q("srcDevice", srcDevice, "i32") Q("dstArray", dstArray, "ptr") Q("dstPtr", dstPtr.ptr, "ptr")
	Q("dstPitch", dstPtr.pitch, "u64") Q("dstDevice", dstDevice, "i32") Q("width", extent.width, "u64")
	Q("height", extent.height, "u64") Q("depth", extent.depth, "u64")
}

static void pools(const char *api, const char *pool, const char *node, const char *access, const char *at)
{
	char type[80];
#define T(what) (snprintf(type, sizeof(type), "enum=%s%s", api, what), type)
	F(pool, poolProps, "allocType", allocType, T("emAllocationType"))
	F(pool, poolProps, "handleTypes", handleTypes, T("emAllocationHandleType"))
	F(pool, poolProps, "location", at.type, T("emLocationType"))
	F(pool, poolProps, "id", at.id, "i32") F(pool, poolProps, "maxSize", maxSize, "u64")
	F(node, allocNode, "location", props.at.type, T("emLocationType")) F(node, allocNode, "id", props.at.id, "i32")
	F(node, allocNode, "bytesize", bytesize, "u64") F(node, allocNode, "dptr", dptr, "ptr")
	F(access, accessDesc, "location", at.type, T("emLocationType")) F(access, accessDesc, "id", at.id, "i32")
	F(access, accessDesc, "flags", flags, T(api[1] == 'U' ? "emAccess_flags" : "emAccessFlags"))
	F(at, location, "type", type, T("emLocationType")) F(at, location, "id", id, "i32")
	printf("%s bytes %zu size\n", access, sizeof(accessDesc));
}

static void nodes(void)
{
	const char *kernels[] = {"CUDA_KERNEL_NODE_PARAMS_v1", "cudaKernelNodeParams", "CUDA_KERNEL_NODE_PARAMS"};
	const char *memsets[] = {"CUDA_MEMSET_NODE_PARAMS", "cudaMemsetParams"};
	const char *any[] = {"CUgraphNodeParams", "cudaGraphNodeParams"};
	const char *hosts[] = {"CUDA_HOST_NODE_PARAMS", "cudaHostNodeParams"};
#define K(member, type) F(kernels[i], kernelNode, #member, member, type)
	for (int i = 0; i < 3; i++) {
		K(func, "ptr") K(grid, "dim3") K(block, "dim3") K(shared, "u32")
	}
	for (int i = 2; i < 3; i++) {
		K(kern, "ptr") K(ctx, "ptr")
	}
	// Of any kind: only which is shown.
	for (int i = 0; i < 2; i++) {
		F(any[i], anyNode, "type", type, "u32")
		printf("%s bytes %zu size\n", any[i], sizeof(anyNode));
	}
#define W(member, type) F(memsets[i], memsetNode, #member, member, type)
	for (int i = 0; i < 2; i++) {
		W(dst, "ptr") W(pitch, "u64") W(value, "u32") W(elementSize, "u32") W(width, "u64") W(height, "u64")
		F(hosts[i], hostNode, "fn", fn, "ptr") F(hosts[i], hostNode, "userData", userData, "ptr")
	}
}

static void others(void)
{
#define A(member, type) S(CUDA_ARRAY_DESCRIPTOR, member, type)
	A(Width, "u64") A(Height, "u64") A(Format, "enum=CUarray_format") A(NumChannels, "u32")
#define B(member, type) S(CUDA_ARRAY3D_DESCRIPTOR, member, type)
	B(Width, "u64") B(Height, "u64") B(Depth, "u64") B(Format, "enum=CUarray_format") B(NumChannels, "u32")
	B(Flags, "u32")
#define C(shown, member, type) F("CUmemAllocationProp", CUmemAllocationProp, shown, member, type)
	C("type", type, "enum=CUmemAllocationType")
	C("requestedHandleTypes", requestedHandleTypes, "enum=CUmemAllocationHandleType")
	C("location", at.type, "enum=CUmemLocationType") C("id", at.id, "i32")
#define D(member, type) S(CUmulticastObjectProp, member, type)
	D(numDevices, "u32") D(size, "u64") D(handleTypes, "u64") D(flags, "u64")
#define E(member, type) S(cudaPitchedPtr, member, type)
	E(ptr, "ptr") E(pitch, "u64") E(xsize, "u64") E(ysize, "u64")
#define G(member, type) S(cudaExtent, member, type)
	G(width, "u64") G(height, "u64") G(depth, "u64")
#define H(member, type) S(cudaPointerAttributes, member, type)
	H(type, "enum=cudaMemoryType") H(device, "i32") H(devicePointer, "ptr") H(hostPointer, "ptr")
#define I(member, type) S(cudaFuncAttributes, member, type)
	I(sharedSizeBytes, "u64") I(constSizeBytes, "u64") I(localSizeBytes, "u64") I(maxThreadsPerBlock, "i32")
	I(numRegs, "i32") I(ptxVersion, "i32") I(binaryVersion, "i32") I(maxDynamicSharedSizeBytes, "i32")
#define J(member, type) S(cudaChannelFormatDesc, member, type)
	J(x, "i32") J(y, "i32") J(z, "i32") J(w, "i32") J(f, "enum=cudaChannelFormatKind")
	puts("dim3 - 0 dim3\nCUuuid - 0 uuid\ncudaUUID_t - 0 uuid");
	puts("CUipcMemHandle - 0 opaque\nCUipcEventHandle - 0 opaque");
	puts("cudaIpcMemHandle_t - 0 opaque\ncudaIpcEventHandle_t - 0 opaque");
}

int main(void)
{
	launches();
	copies();
	pools("CUm", "CUmemPoolProps", "CUDA_MEM_ALLOC_NODE_PARAMS", "CUmemAccessDesc", "CUmemLocation");
	pools("cudaM", "cudaMemPoolProps", "cudaMemAllocNodeParams", "cudaMemAccessDesc", "cudaMemLocation");
	nodes();
	others();
	return 0;
}
