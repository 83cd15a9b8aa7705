"builtin.module"() ({
  "stable_mosaic.func.func"() ({
  ^bb0(%arg0: i32, %arg1: i32, %arg2: memref<2xi32, #tpu.memory_space<smem>>, %arg3: memref<2xi8, #tpu.memory_space<smem>>, %arg4: memref<8x128xf32, #tpu.memory_space<vmem>>, %arg5: memref<16x128xbf16, #tpu.memory_space<vmem>>, %arg6: memref<16x128xf32, #tpu.memory_space<any>>, %arg7: memref<8x128xf32, #tpu.memory_space<vmem>>, %arg8: memref<8x128xf32, #tpu.memory_space<vmem>>, %arg9: memref<2x8x128xf32, #tpu.memory_space<vmem>>, %arg10: memref<2xi32, #tpu.memory_space<smem>>, %arg11: memref<2x!tpu.dma_semaphore, #tpu.memory_space<semaphore_mem>>):
    %0 = "stable_mosaic.arith.constant"() {value = 0 : i32} : () -> i32
    %1 = "stable_mosaic.arith.constant"() {value = 1 : i32} : () -> i32
    %2 = "stable_mosaic.arith.cmpi"(%arg1, %0) {predicate = 0 : i64} : (i32, i32) -> i1
    "stable_mosaic.scf.if"(%2) ({
      %3 = "stable_mosaic.arith.constant"() {value = dense<0.000000e+00> : vector<8x128xf32>} : () -> vector<8x128xf32>
      %4 = "stable_mosaic.arith.constant"() {value = 0 : index} : () -> index
      "stable_mosaic.tpu.vector_store"(%3, %arg8, %4, %4) {add = false, operandSegmentSizes = array<i32: 1, 1, 2, 0>, strides = array<i32>} : (vector<8x128xf32>, memref<8x128xf32, #tpu.memory_space<vmem>>, index, index) -> ()
      "stable_mosaic.scf.yield"() : () -> ()
    }, {
      "stable_mosaic.scf.yield"() : () -> ()
    }) : (i1) -> ()
    %5 = "stable_mosaic.arith.constant"() {value = 8 : i32} : () -> i32
    %6 = "stable_mosaic.arith.muli"(%arg0, %5) {overflowFlags = #arith.overflow<none>} : (i32, i32) -> i32
    %7 = "stable_mosaic.tpu.assume_multiple"(%6) {multiple = 8 : i32} : (i32) -> i32
    %8 = "stable_mosaic.tpu.memref_slice"(%arg6, %7, %0) {operandSegmentSizes = array<i32: 1, 2, 0>} : (memref<16x128xf32, #tpu.memory_space<any>>, i32, i32) -> memref<8x128xf32, #tpu.memory_space<any>>
    %9 = "stable_mosaic.tpu.memref_slice"(%arg9, %1, %0, %0) {operandSegmentSizes = array<i32: 1, 3, 0>} : (memref<2x8x128xf32, #tpu.memory_space<vmem>>, i32, i32, i32) -> memref<1x8x128xf32, #tpu.memory_space<vmem>>
    %10 = "stable_mosaic.tpu.memref_squeeze"(%9) : (memref<1x8x128xf32, #tpu.memory_space<vmem>>) -> memref<8x128xf32, #tpu.memory_space<vmem>>
    %11 = "stable_mosaic.tpu.memref_slice"(%arg11, %0) {operandSegmentSizes = array<i32: 1, 1, 0>} : (memref<2x!tpu.dma_semaphore, #tpu.memory_space<semaphore_mem>>, i32) -> memref<1x!tpu.dma_semaphore, #tpu.memory_space<semaphore_mem>>
    %12 = "stable_mosaic.tpu.memref_squeeze"(%11) : (memref<1x!tpu.dma_semaphore, #tpu.memory_space<semaphore_mem>>) -> memref<!tpu.dma_semaphore, #tpu.memory_space<semaphore_mem>>
    "stable_mosaic.tpu.enqueue_dma"(%8, %10, %12) {operandSegmentSizes = array<i32: 1, 0, 1, 1, 0, 0>, priority = 0 : i32, strict_ordering = false} : (memref<8x128xf32, #tpu.memory_space<any>>, memref<8x128xf32, #tpu.memory_space<vmem>>, memref<!tpu.dma_semaphore, #tpu.memory_space<semaphore_mem>>) -> ()
    %13 = "stable_mosaic.arith.constant"() {value = 0 : index} : () -> index
    %14 = "stable_mosaic.vector.load"(%arg4, %13, %13) : (memref<8x128xf32, #tpu.memory_space<vmem>>, index, index) -> vector<8x128xf32>
    %15 = "stable_mosaic.vector.load"(%arg5, %13, %13) : (memref<16x128xbf16, #tpu.memory_space<vmem>>, index, index) -> vector<16x128xbf16>
    %16 = "stable_mosaic.arith.extf"(%15) : (vector<16x128xbf16>) -> vector<16x128xf32>
    %17 = "stable_mosaic.arith.constant"() {value = dense<0.000000e+00> : vector<8x16xf32>} : () -> vector<8x16xf32>
    %18 = "stable_mosaic.tpu.matmul"(%14, %16, %17) {dimension_numbers = #tpu.dot_dimension_numbers<[1], [1], [0], [0], [0, 0, 1, 0], [], []>, precision = #tpu.contract_precision<fp32>, transpose_lhs = false, transpose_lhs_hint = false, transpose_rhs = false} : (vector<8x128xf32>, vector<16x128xf32>, vector<8x16xf32>) -> vector<8x16xf32>
    %19 = "stable_mosaic.arith.constant"() {value = dense<0xFF800000> : vector<8xf32>} : () -> vector<8xf32>
    %20 = "stable_mosaic.vector.multi_reduction"(%18, %19) {kind = #vector.kind<maximumf>, reduction_dims = array<i64: 1>} : (vector<8x16xf32>, vector<8xf32>) -> vector<8xf32>
    %21 = "stable_mosaic.vector.shape_cast"(%20) : (vector<8xf32>) -> vector<8x1xf32>
    %22 = "stable_mosaic.vector.broadcast"(%21) : (vector<8x1xf32>) -> vector<8x16xf32>
    %23 = "stable_mosaic.arith.subf"(%18, %22) {fastmath = #arith.fastmath<none>} : (vector<8x16xf32>, vector<8x16xf32>) -> vector<8x16xf32>
    %24 = "stable_mosaic.math.exp2"(%23) {fastmath = #arith.fastmath<none>} : (vector<8x16xf32>) -> vector<8x16xf32>
    %25 = "stable_mosaic.arith.truncf"(%24) : (vector<8x16xf32>) -> vector<8x16xbf16>
    %26 = "stable_mosaic.arith.constant"() {value = dense<0.000000e+00> : vector<8x128xf32>} : () -> vector<8x128xf32>
    %27 = "stable_mosaic.tpu.matmul"(%25, %15, %26) {dimension_numbers = #tpu.dot_dimension_numbers<[1], [0], [0], [1], [0, 0, 1, 1], [], []>, transpose_lhs = false, transpose_lhs_hint = false, transpose_rhs = false} : (vector<8x16xbf16>, vector<16x128xbf16>, vector<8x128xf32>) -> vector<8x128xf32>
    %28 = "stable_mosaic.tpu.matmul"(%25, %15, %27) {dimension_numbers = #tpu.dot_dimension_numbers<[1], [0], [0], [1], [0, 0, 1, 1], [], []>, transpose_lhs = false, transpose_lhs_hint = false, transpose_rhs = false} : (vector<8x16xbf16>, vector<16x128xbf16>, vector<8x128xf32>) -> vector<8x128xf32>
    %29 = "stable_mosaic.arith.constant"() {value = dense<0.000000e+00> : vector<128x8xf32>} : () -> vector<128x8xf32>
    %30 = "stable_mosaic.tpu.matmul"(%15, %25, %29) {dimension_numbers = #tpu.dot_dimension_numbers<[0], [1], [1], [0], [0, 1, 1, 0], [], []>, transpose_lhs = false, transpose_lhs_hint = false, transpose_rhs = false} : (vector<16x128xbf16>, vector<8x16xbf16>, vector<128x8xf32>) -> vector<128x8xf32>
    %31 = "stable_mosaic.tpu.transpose"(%30) {permutation = array<i64: 1, 0>} : (vector<128x8xf32>) -> vector<8x128xf32>
    %32 = "stable_mosaic.arith.addf"(%28, %31) {fastmath = #arith.fastmath<none>} : (vector<8x128xf32>, vector<8x128xf32>) -> vector<8x128xf32>
    %33 = "stable_mosaic.arith.constant"() {value = 1.250000e-01 : f32} : () -> f32
    %34 = "stable_mosaic.vector.broadcast"(%33) : (f32) -> vector<8x128xf32>
    %35 = "stable_mosaic.arith.mulf"(%32, %34) {fastmath = #arith.fastmath<none>} : (vector<8x128xf32>, vector<8x128xf32>) -> vector<8x128xf32>
    %36 = "stable_mosaic.math.tanh"(%35) {fastmath = #arith.fastmath<none>} : (vector<8x128xf32>) -> vector<8x128xf32>
    %37 = "stable_mosaic.math.exp"(%36) {fastmath = #arith.fastmath<none>} : (vector<8x128xf32>) -> vector<8x128xf32>
    %38 = "stable_mosaic.math.absf"(%36) {fastmath = #arith.fastmath<none>} : (vector<8x128xf32>) -> vector<8x128xf32>
    %39 = "stable_mosaic.arith.constant"() {value = 1.000000e+00 : f32} : () -> f32
    %40 = "stable_mosaic.vector.broadcast"(%39) : (f32) -> vector<8x128xf32>
    %41 = "stable_mosaic.arith.addf"(%38, %40) {fastmath = #arith.fastmath<none>} : (vector<8x128xf32>, vector<8x128xf32>) -> vector<8x128xf32>
    %42 = "stable_mosaic.arith.divf"(%37, %41) {fastmath = #arith.fastmath<none>} : (vector<8x128xf32>, vector<8x128xf32>) -> vector<8x128xf32>
    %43 = "stable_mosaic.arith.constant"() {value = 2.000000e+00 : f32} : () -> f32
    %44 = "stable_mosaic.vector.broadcast"(%43) : (f32) -> vector<8x128xf32>
    %45 = "stable_mosaic.arith.addf"(%42, %44) {fastmath = #arith.fastmath<none>} : (vector<8x128xf32>, vector<8x128xf32>) -> vector<8x128xf32>
    %46 = "stable_mosaic.math.log"(%45) {fastmath = #arith.fastmath<none>} : (vector<8x128xf32>) -> vector<8x128xf32>
    %47 = "stable_mosaic.arith.constant"() {value = 5.000000e-01 : f32} : () -> f32
    %48 = "stable_mosaic.vector.broadcast"(%47) : (f32) -> vector<8x128xf32>
    %49 = "stable_mosaic.arith.maximumf"(%42, %48) {fastmath = #arith.fastmath<none>} : (vector<8x128xf32>, vector<8x128xf32>) -> vector<8x128xf32>
    %50 = "stable_mosaic.math.log2"(%49) {fastmath = #arith.fastmath<none>} : (vector<8x128xf32>) -> vector<8x128xf32>
    %51 = "stable_mosaic.arith.addf"(%46, %50) {fastmath = #arith.fastmath<none>} : (vector<8x128xf32>, vector<8x128xf32>) -> vector<8x128xf32>
    %52 = "stable_mosaic.math.absf"(%51) {fastmath = #arith.fastmath<none>} : (vector<8x128xf32>) -> vector<8x128xf32>
    %53 = "stable_mosaic.math.sqrt"(%52) {fastmath = #arith.fastmath<none>} : (vector<8x128xf32>) -> vector<8x128xf32>
    %54 = "stable_mosaic.arith.constant"() {value = 2.500000e-01 : f32} : () -> f32
    %55 = "stable_mosaic.vector.broadcast"(%54) : (f32) -> vector<8x128xf32>
    %56 = "stable_mosaic.arith.maximumf"(%42, %55) {fastmath = #arith.fastmath<none>} : (vector<8x128xf32>, vector<8x128xf32>) -> vector<8x128xf32>
    %57 = "stable_mosaic.math.rsqrt"(%56) {fastmath = #arith.fastmath<none>} : (vector<8x128xf32>) -> vector<8x128xf32>
    %58 = "stable_mosaic.arith.addf"(%53, %57) {fastmath = #arith.fastmath<none>} : (vector<8x128xf32>, vector<8x128xf32>) -> vector<8x128xf32>
    %59 = "stable_mosaic.math.absf"(%58) {fastmath = #arith.fastmath<none>} : (vector<8x128xf32>) -> vector<8x128xf32>
    %60 = "stable_mosaic.math.log1p"(%59) {fastmath = #arith.fastmath<none>} : (vector<8x128xf32>) -> vector<8x128xf32>
    %61 = "stable_mosaic.arith.minimumf"(%58, %51) {fastmath = #arith.fastmath<none>} : (vector<8x128xf32>, vector<8x128xf32>) -> vector<8x128xf32>
    %62 = "stable_mosaic.arith.negf"(%61) {fastmath = #arith.fastmath<none>} : (vector<8x128xf32>) -> vector<8x128xf32>
    %63 = "stable_mosaic.arith.addf"(%60, %62) {fastmath = #arith.fastmath<none>} : (vector<8x128xf32>, vector<8x128xf32>) -> vector<8x128xf32>
    %64 = "stable_mosaic.tpu.bitcast"(%63) : (vector<8x128xf32>) -> vector<8x128xi32>
    %65 = "stable_mosaic.tpu.iota"() {dimensions = array<i32: 1>} : () -> vector<8x128xi32>
    %66 = "stable_mosaic.tpu.iota"() {dimensions = array<i32: 0>} : () -> vector<8x128xi32>
    %67 = "stable_mosaic.arith.constant"() {value = 128 : i32} : () -> i32
    %68 = "stable_mosaic.vector.broadcast"(%67) : (i32) -> vector<8x128xi32>
    %69 = "stable_mosaic.arith.muli"(%66, %68) {overflowFlags = #arith.overflow<none>} : (vector<8x128xi32>, vector<8x128xi32>) -> vector<8x128xi32>
    %70 = "stable_mosaic.arith.addi"(%65, %69) {overflowFlags = #arith.overflow<none>} : (vector<8x128xi32>, vector<8x128xi32>) -> vector<8x128xi32>
    %71 = "stable_mosaic.arith.constant"() {value = 127 : i32} : () -> i32
    %72 = "stable_mosaic.vector.broadcast"(%71) : (i32) -> vector<8x128xi32>
    %73 = "stable_mosaic.arith.andi"(%64, %72) : (vector<8x128xi32>, vector<8x128xi32>) -> vector<8x128xi32>
    %74 = "stable_mosaic.arith.constant"() {value = 3 : i32} : () -> i32
    %75 = "stable_mosaic.arith.shli"(%1, %74) {overflowFlags = #arith.overflow<none>} : (i32, i32) -> i32
    %76 = "stable_mosaic.vector.broadcast"(%75) : (i32) -> vector<8x128xi32>
    %77 = "stable_mosaic.arith.ori"(%70, %76) : (vector<8x128xi32>, vector<8x128xi32>) -> vector<8x128xi32>
    %78 = "stable_mosaic.arith.xori"(%73, %77) : (vector<8x128xi32>, vector<8x128xi32>) -> vector<8x128xi32>
    %79 = "stable_mosaic.arith.constant"() {value = 7 : i32} : () -> i32
    %80 = "stable_mosaic.vector.broadcast"(%79) : (i32) -> vector<8x128xi32>
    %81 = "stable_mosaic.arith.remsi"(%70, %80) : (vector<8x128xi32>, vector<8x128xi32>) -> vector<8x128xi32>
    %82 = "stable_mosaic.arith.constant"() {value = 5 : i32} : () -> i32
    %83 = "stable_mosaic.vector.broadcast"(%82) : (i32) -> vector<8x128xi32>
    %84 = "stable_mosaic.arith.divsi"(%70, %83) : (vector<8x128xi32>, vector<8x128xi32>) -> vector<8x128xi32>
    %85 = "stable_mosaic.arith.subi"(%81, %84) {overflowFlags = #arith.overflow<none>} : (vector<8x128xi32>, vector<8x128xi32>) -> vector<8x128xi32>
    %86 = "stable_mosaic.arith.addi"(%78, %85) {overflowFlags = #arith.overflow<none>} : (vector<8x128xi32>, vector<8x128xi32>) -> vector<8x128xi32>
    %87 = "stable_mosaic.vector.broadcast"(%1) : (i32) -> vector<8x128xi32>
    %88 = "stable_mosaic.arith.shrui"(%70, %87) : (vector<8x128xi32>, vector<8x128xi32>) -> vector<8x128xi32>
    %89 = "stable_mosaic.vector.broadcast"(%1) : (i32) -> vector<8x128xi32>
    %90 = "stable_mosaic.arith.shrsi"(%70, %89) : (vector<8x128xi32>, vector<8x128xi32>) -> vector<8x128xi32>
    %91 = "stable_mosaic.arith.addi"(%88, %90) {overflowFlags = #arith.overflow<none>} : (vector<8x128xi32>, vector<8x128xi32>) -> vector<8x128xi32>
    %92 = "stable_mosaic.arith.addi"(%86, %91) {overflowFlags = #arith.overflow<none>} : (vector<8x128xi32>, vector<8x128xi32>) -> vector<8x128xi32>
    %93 = "stable_mosaic.arith.constant"() {value = -9 : i32} : () -> i32
    %94 = "stable_mosaic.vector.broadcast"(%93) : (i32) -> vector<8x128xi32>
    %95 = "stable_mosaic.arith.maxsi"(%92, %94) : (vector<8x128xi32>, vector<8x128xi32>) -> vector<8x128xi32>
    %96 = "stable_mosaic.arith.constant"() {value = 900 : i32} : () -> i32
    %97 = "stable_mosaic.vector.broadcast"(%96) : (i32) -> vector<8x128xi32>
    %98 = "stable_mosaic.arith.minsi"(%95, %97) : (vector<8x128xi32>, vector<8x128xi32>) -> vector<8x128xi32>
    %99 = "stable_mosaic.arith.sitofp"(%98) : (vector<8x128xi32>) -> vector<8x128xf32>
    %100 = "stable_mosaic.arith.trunci"(%98) : (vector<8x128xi32>) -> vector<8x128xi8>
    %101 = "stable_mosaic.arith.extsi"(%100) : (vector<8x128xi8>) -> vector<8x128xi32>
    %102 = "stable_mosaic.arith.fptosi"(%99) : (vector<8x128xf32>) -> vector<8x128xi32>
    %103 = "stable_mosaic.arith.sitofp"(%102) : (vector<8x128xi32>) -> vector<8x128xf32>
    %104 = "stable_mosaic.vector.broadcast"(%0) : (i32) -> vector<8x128xi32>
    %105 = "stable_mosaic.arith.cmpi"(%101, %104) {predicate = 2 : i64} : (vector<8x128xi32>, vector<8x128xi32>) -> vector<8x128xi1>
    %106 = "stable_mosaic.arith.extui"(%105) : (vector<8x128xi1>) -> vector<8x128xi32>
    %107 = "stable_mosaic.arith.sitofp"(%106) : (vector<8x128xi32>) -> vector<8x128xf32>
    %108 = "stable_mosaic.arith.cmpf"(%99, %103) {fastmath = #arith.fastmath<none>, predicate = 2 : i64} : (vector<8x128xf32>, vector<8x128xf32>) -> vector<8x128xi1>
    %109 = "stable_mosaic.arith.constant"() {value = 0.000000e+00 : f32} : () -> f32
    %110 = "stable_mosaic.arith.addf"(%107, %63) {fastmath = #arith.fastmath<none>} : (vector<8x128xf32>, vector<8x128xf32>) -> vector<8x128xf32>
    %111 = "stable_mosaic.vector.broadcast"(%109) : (f32) -> vector<8x128xf32>
    %112 = "stable_mosaic.arith.select"(%108, %111, %110) : (vector<8x128xi1>, vector<8x128xf32>, vector<8x128xf32>) -> vector<8x128xf32>
    %113 = "stable_mosaic.tpu.dynamic_rotate"(%112, %arg1) {dimension = 1 : si32} : (vector<8x128xf32>, i32) -> vector<8x128xf32>
    %114 = "stable_mosaic.arith.addf"(%112, %113) {fastmath = #arith.fastmath<none>} : (vector<8x128xf32>, vector<8x128xf32>) -> vector<8x128xf32>
    %115 = "stable_mosaic.tpu.concatenate"(%114, %14) {dimension = 0 : i32} : (vector<8x128xf32>, vector<8x128xf32>) -> vector<16x128xf32>
    %116 = "stable_mosaic.vector.extract_strided_slice"(%115) {offsets = [4, 0], sizes = [8, 128], strides = [1, 1]} : (vector<16x128xf32>) -> vector<8x128xf32>
    %117 = "stable_mosaic.arith.addf"(%114, %116) {fastmath = #arith.fastmath<none>} : (vector<8x128xf32>, vector<8x128xf32>) -> vector<8x128xf32>
    %118 = "stable_mosaic.arith.constant"() {value = dense<0.000000e+00> : vector<128xf32>} : () -> vector<128xf32>
    %119 = "stable_mosaic.vector.multi_reduction"(%14, %118) {kind = #vector.kind<add>, reduction_dims = array<i64: 0>} : (vector<8x128xf32>, vector<128xf32>) -> vector<128xf32>
    %120 = "stable_mosaic.vector.shape_cast"(%119) : (vector<128xf32>) -> vector<1x128xf32>
    %121 = "stable_mosaic.vector.broadcast"(%120) : (vector<1x128xf32>) -> vector<8x128xf32>
    %122 = "stable_mosaic.arith.addf"(%117, %121) {fastmath = #arith.fastmath<none>} : (vector<8x128xf32>, vector<8x128xf32>) -> vector<8x128xf32>
    %123 = "stable_mosaic.math.absf"(%14) {fastmath = #arith.fastmath<none>} : (vector<8x128xf32>) -> vector<8x128xf32>
    %124 = "stable_mosaic.vector.broadcast"(%39) : (f32) -> vector<8x128xf32>
    %125 = "stable_mosaic.arith.addf"(%123, %124) {fastmath = #arith.fastmath<none>} : (vector<8x128xf32>, vector<8x128xf32>) -> vector<8x128xf32>
    %126 = "stable_mosaic.tpu.reciprocal"(%125) {approx = false, full_range = true} : (vector<8x128xf32>) -> vector<8x128xf32>
    %127 = "stable_mosaic.arith.mulf"(%122, %126) {fastmath = #arith.fastmath<none>} : (vector<8x128xf32>, vector<8x128xf32>) -> vector<8x128xf32>
    %128 = "stable_mosaic.vector.extract"(%127) {static_position = array<i64: 0, 3>} : (vector<8x128xf32>) -> f32
    %129 = "stable_mosaic.arith.fptosi"(%128) : (f32) -> i32
    %130 = "stable_mosaic.arith.index_cast"(%0) : (i32) -> index
    "stable_mosaic.memref.store"(%129, %arg10, %130) : (i32, memref<2xi32, #tpu.memory_space<smem>>, index) -> ()
    %131 = "stable_mosaic.arith.index_cast"(%0) : (i32) -> index
    %132 = "stable_mosaic.memref.load"(%arg10, %131) : (memref<2xi32, #tpu.memory_space<smem>>, index) -> i32
    %133 = "stable_mosaic.arith.index_cast"(%arg0) : (i32) -> index
    %134 = "stable_mosaic.memref.load"(%arg2, %133) : (memref<2xi32, #tpu.memory_space<smem>>, index) -> i32
    %135 = "stable_mosaic.vector.load"(%arg8, %13, %13) : (memref<8x128xf32, #tpu.memory_space<vmem>>, index, index) -> vector<8x128xf32>
    %136:2 = "stable_mosaic.scf.for"(%0, %134, %1, %135, %132) ({
    ^bb0(%arg12: i32, %arg13: vector<8x128xf32>, %arg14: i32):
      %137 = "stable_mosaic.arith.addf"(%arg13, %127) {fastmath = #arith.fastmath<none>} : (vector<8x128xf32>, vector<8x128xf32>) -> vector<8x128xf32>
      %138 = "stable_mosaic.arith.addi"(%arg14, %arg12) {overflowFlags = #arith.overflow<none>} : (i32, i32) -> i32
      "stable_mosaic.scf.yield"(%137, %138) : (vector<8x128xf32>, i32) -> ()
    }) : (i32, i32, i32, vector<8x128xf32>, i32) -> (vector<8x128xf32>, i32)
    %139 = "stable_mosaic.arith.constant"() {value = 4 : i32} : () -> i32
    %140:2 = "stable_mosaic.scf.while"(%136#0, %139) ({
    ^bb0(%arg15: vector<8x128xf32>, %arg16: i32):
      %141 = "stable_mosaic.arith.cmpi"(%arg16, %0) {predicate = 4 : i64} : (i32, i32) -> i1
      "stable_mosaic.scf.condition"(%141, %arg15, %arg16) : (i1, vector<8x128xf32>, i32) -> ()
    }, {
    ^bb0(%arg17: vector<8x128xf32>, %arg18: i32):
      %142 = "stable_mosaic.vector.broadcast"(%47) : (f32) -> vector<8x128xf32>
      %143 = "stable_mosaic.arith.mulf"(%arg17, %142) {fastmath = #arith.fastmath<none>} : (vector<8x128xf32>, vector<8x128xf32>) -> vector<8x128xf32>
      %144 = "stable_mosaic.arith.subi"(%arg18, %1) {overflowFlags = #arith.overflow<none>} : (i32, i32) -> i32
      "stable_mosaic.scf.yield"(%143, %144) : (vector<8x128xf32>, i32) -> ()
    }) : (vector<8x128xf32>, i32) -> (vector<8x128xf32>, i32)
    "stable_mosaic.tpu.wait_dma2"(%12, %8, %10) {operandSegmentSizes = array<i32: 1, 1, 1, 0, 0>, strict_ordering = false} : (memref<!tpu.dma_semaphore, #tpu.memory_space<semaphore_mem>>, memref<8x128xf32, #tpu.memory_space<any>>, memref<8x128xf32, #tpu.memory_space<vmem>>) -> ()
    %145 = "stable_mosaic.arith.index_cast"(%1) : (i32) -> index
    %146 = "stable_mosaic.arith.index_cast"(%0) : (i32) -> index
    %147 = "stable_mosaic.arith.index_cast"(%0) : (i32) -> index
    %148 = "stable_mosaic.vector.load"(%arg9, %145, %146, %147) : (memref<2x8x128xf32, #tpu.memory_space<vmem>>, index, index, index) -> vector<1x8x128xf32>
    %149 = "stable_mosaic.vector.shape_cast"(%148) : (vector<1x8x128xf32>) -> vector<8x128xf32>
    %150 = "stable_mosaic.arith.cmpi"(%arg1, %0) {predicate = 1 : i64} : (i32, i32) -> i1
    %151 = "stable_mosaic.scf.if"(%150) ({
      %152 = "stable_mosaic.arith.addf"(%140#0, %149) {fastmath = #arith.fastmath<none>} : (vector<8x128xf32>, vector<8x128xf32>) -> vector<8x128xf32>
      "stable_mosaic.scf.yield"(%152) : (vector<8x128xf32>) -> ()
    }, {
      "stable_mosaic.scf.yield"(%140#0) : (vector<8x128xf32>) -> ()
    }) : (i1) -> vector<8x128xf32>
    "stable_mosaic.tpu.vector_store"(%151, %arg8, %13, %13) {add = false, operandSegmentSizes = array<i32: 1, 1, 2, 0>, strides = array<i32>} : (vector<8x128xf32>, memref<8x128xf32, #tpu.memory_space<vmem>>, index, index) -> ()
    "stable_mosaic.tpu.vector_store"(%151, %arg7, %13, %13) {add = false, operandSegmentSizes = array<i32: 1, 1, 2, 0>, strides = array<i32>} : (vector<8x128xf32>, memref<8x128xf32, #tpu.memory_space<vmem>>, index, index) -> ()
    "stable_mosaic.func.return"() : () -> ()
  }) {dimension_semantics = [#tpu.dimension_semantics<parallel>, #tpu.dimension_semantics<arbitrary>], function_type = (i32, i32, memref<2xi32, #tpu.memory_space<smem>>, memref<2xi8, #tpu.memory_space<smem>>, memref<8x128xf32, #tpu.memory_space<vmem>>, memref<16x128xbf16, #tpu.memory_space<vmem>>, memref<16x128xf32, #tpu.memory_space<any>>, memref<8x128xf32, #tpu.memory_space<vmem>>, memref<8x128xf32, #tpu.memory_space<vmem>>, memref<2x8x128xf32, #tpu.memory_space<vmem>>, memref<2xi32, #tpu.memory_space<smem>>, memref<2x!tpu.dma_semaphore, #tpu.memory_space<semaphore_mem>>) -> (), iteration_bounds = array<i64: 2, 2>, scalar_prefetch = 2 : i64, scratch_operands = 4 : i64, sym_name = "sample", tpu.core_type = #tpu.core_type<tc>, window_params = [{transform_indices = @transform_0, window_bounds = array<i64: 8, 128>}, {transform_indices = @transform_1, window_bounds = array<i64: 16, 128>}, {}, {transform_indices = @transform_3, window_bounds = array<i64: 8, 128>}]} : () -> ()
  "stable_mosaic.func.func"() ({
  ^bb0(%arg19: i32, %arg20: i32, %arg21: memref<2xi32, #tpu.memory_space<smem>>, %arg22: memref<2xi8, #tpu.memory_space<smem>>):
    %153 = "stable_mosaic.arith.constant"() {value = 0 : i32} : () -> i32
    "stable_mosaic.func.return"(%arg19, %153) : (i32, i32) -> ()
  }) {function_type = (i32, i32, memref<2xi32, #tpu.memory_space<smem>>, memref<2xi8, #tpu.memory_space<smem>>) -> (i32, i32), sym_name = "transform_0"} : () -> ()
  "stable_mosaic.func.func"() ({
  ^bb0(%arg23: i32, %arg24: i32, %arg25: memref<2xi32, #tpu.memory_space<smem>>, %arg26: memref<2xi8, #tpu.memory_space<smem>>):
    %154 = "stable_mosaic.arith.index_cast"(%arg23) : (i32) -> index
    %155 = "stable_mosaic.memref.load"(%arg26, %154) : (memref<2xi8, #tpu.memory_space<smem>>, index) -> i8
    %156 = "stable_mosaic.arith.extsi"(%155) : (i8) -> i32
    %157 = "stable_mosaic.arith.constant"() {value = 0 : i32} : () -> i32
    "stable_mosaic.func.return"(%156, %157) : (i32, i32) -> ()
  }) {function_type = (i32, i32, memref<2xi32, #tpu.memory_space<smem>>, memref<2xi8, #tpu.memory_space<smem>>) -> (i32, i32), sym_name = "transform_1"} : () -> ()
  "stable_mosaic.func.func"() ({
  ^bb0(%arg27: i32, %arg28: i32, %arg29: memref<2xi32, #tpu.memory_space<smem>>, %arg30: memref<2xi8, #tpu.memory_space<smem>>):
    %158 = "stable_mosaic.arith.constant"() {value = 0 : i32} : () -> i32
    "stable_mosaic.func.return"(%arg27, %158) : (i32, i32) -> ()
  }) {function_type = (i32, i32, memref<2xi32, #tpu.memory_space<smem>>, memref<2xi8, #tpu.memory_space<smem>>) -> (i32, i32), sym_name = "transform_3"} : () -> ()
}) {stable_mosaic.version = 13 : i64} : () -> ()
