"builtin.module"() ({
  "stable_mosaic.func.func"() ({
  ^bb0(%arg0: i32, %arg1: i32, %arg2: i32, %arg3: memref<1x1x1xi8, #tpu.memory_space<smem>>, %arg4: memref<1x1x1xi8, #tpu.memory_space<smem>>, %arg5: memref<1x128x64xbf16, #tpu.memory_space<vmem>>, %arg6: memref<1x128x64xbf16, #tpu.memory_space<vmem>>, %arg7: memref<1x128x64xbf16, #tpu.memory_space<vmem>>, %arg8: memref<1x1x128xf32, #tpu.memory_space<vmem>>, %arg9: memref<1x128x64xbf16, #tpu.memory_space<vmem>>, %arg10: memref<1x1x128xf32, #tpu.memory_space<vmem>>, %arg11: memref<128x64xf32, #tpu.memory_space<vmem>>, %arg12: memref<1x128x64xbf16, #tpu.memory_space<vmem>>):
    %0 = "stable_mosaic.arith.constant"() {value = 0 : i32} : () -> i32
    %1 = "stable_mosaic.arith.cmpi"(%arg2, %0) {predicate = 0 : i64} : (i32, i32) -> i1
    %2 = "stable_mosaic.arith.extui"(%1) : (i1) -> i32
    %3 = "stable_mosaic.arith.cmpi"(%2, %0) {predicate = 1 : i64} : (i32, i32) -> i1
    "stable_mosaic.scf.if"(%3) ({
      %4 = "stable_mosaic.arith.constant"() {value = 0.000000e+00 : f32} : () -> f32
      %5 = "stable_mosaic.vector.broadcast"(%4) : (f32) -> vector<128x64xf32>
      %6 = "stable_mosaic.arith.constant"() {value = 0 : index} : () -> index
      "stable_mosaic.tpu.vector_store"(%5, %arg11, %6, %6) {add = false, operandSegmentSizes = array<i32: 1, 1, 2, 0>, strides = array<i32>} : (vector<128x64xf32>, memref<128x64xf32, #tpu.memory_space<vmem>>, index, index) -> ()
      "stable_mosaic.scf.yield"() : () -> ()
    }, {
      "stable_mosaic.scf.yield"() : () -> ()
    }) : (i1) -> ()
    %7 = "stable_mosaic.arith.constant"() {value = 0 : index} : () -> index
    %8 = "stable_mosaic.arith.index_cast"(%arg1) : (i32) -> index
    %9 = "stable_mosaic.arith.index_cast"(%arg2) : (i32) -> index
    %10 = "stable_mosaic.memref.load"(%arg4, %7, %8, %9) : (memref<1x1x1xi8, #tpu.memory_space<smem>>, index, index, index) -> i8
    %11 = "stable_mosaic.arith.extsi"(%10) : (i8) -> i32
    %12 = "stable_mosaic.arith.cmpi"(%11, %0) {predicate = 4 : i64} : (i32, i32) -> i1
    %13 = "stable_mosaic.arith.index_cast"(%arg1) : (i32) -> index
    %14 = "stable_mosaic.arith.index_cast"(%arg2) : (i32) -> index
    %15 = "stable_mosaic.memref.load"(%arg3, %7, %13, %14) : (memref<1x1x1xi8, #tpu.memory_space<smem>>, index, index, index) -> i8
    %16 = "stable_mosaic.arith.extsi"(%15) : (i8) -> i32
    %17 = "stable_mosaic.arith.extui"(%12) : (i1) -> i32
    %18 = "stable_mosaic.arith.cmpi"(%17, %0) {predicate = 1 : i64} : (i32, i32) -> i1
    "stable_mosaic.scf.if"(%18) ({
      %19 = "stable_mosaic.vector.load"(%arg5, %7, %7, %7) : (memref<1x128x64xbf16, #tpu.memory_space<vmem>>, index, index, index) -> vector<1x128x64xbf16>
      %20 = "stable_mosaic.vector.shape_cast"(%19) : (vector<1x128x64xbf16>) -> vector<128x64xbf16>
      %21 = "stable_mosaic.vector.load"(%arg6, %7, %7, %7) : (memref<1x128x64xbf16, #tpu.memory_space<vmem>>, index, index, index) -> vector<1x128x64xbf16>
      %22 = "stable_mosaic.vector.shape_cast"(%21) : (vector<1x128x64xbf16>) -> vector<128x64xbf16>
      %23 = "stable_mosaic.vector.load"(%arg7, %7, %7, %7) : (memref<1x128x64xbf16, #tpu.memory_space<vmem>>, index, index, index) -> vector<1x128x64xbf16>
      %24 = "stable_mosaic.vector.shape_cast"(%23) : (vector<1x128x64xbf16>) -> vector<128x64xbf16>
      %25 = "stable_mosaic.vector.load"(%arg8, %7, %7, %7) : (memref<1x1x128xf32, #tpu.memory_space<vmem>>, index, index, index) -> vector<1x1x128xf32>
      %26 = "stable_mosaic.vector.shape_cast"(%25) : (vector<1x1x128xf32>) -> vector<128xf32>
      %27 = "stable_mosaic.vector.shape_cast"(%26) : (vector<128xf32>) -> vector<128x1xf32>
      %28 = "stable_mosaic.vector.load"(%arg9, %7, %7, %7) : (memref<1x128x64xbf16, #tpu.memory_space<vmem>>, index, index, index) -> vector<1x128x64xbf16>
      %29 = "stable_mosaic.vector.shape_cast"(%28) : (vector<1x128x64xbf16>) -> vector<128x64xbf16>
      %30 = "stable_mosaic.vector.load"(%arg10, %7, %7, %7) : (memref<1x1x128xf32, #tpu.memory_space<vmem>>, index, index, index) -> vector<1x1x128xf32>
      %31 = "stable_mosaic.vector.shape_cast"(%30) : (vector<1x1x128xf32>) -> vector<128xf32>
      %32 = "stable_mosaic.vector.shape_cast"(%31) : (vector<128xf32>) -> vector<128x1xf32>
      %33 = "stable_mosaic.arith.constant"() {value = dense<0.000000e+00> : vector<128x128xf32>} : () -> vector<128x128xf32>
      %34 = "stable_mosaic.tpu.matmul"(%20, %22, %33) {dimension_numbers = #tpu.dot_dimension_numbers<[1], [1], [0], [0], [0, 0, 1, 0], [], []>, transpose_lhs = false, transpose_lhs_hint = false, transpose_rhs = false} : (vector<128x64xbf16>, vector<128x64xbf16>, vector<128x128xf32>) -> vector<128x128xf32>
      %35 = "stable_mosaic.arith.constant"() {value = 128 : i32} : () -> i32
      %36 = "stable_mosaic.arith.muli"(%16, %35) {overflowFlags = #arith.overflow<none>} : (i32, i32) -> i32
      %37 = "stable_mosaic.vector.broadcast"(%27) : (vector<128x1xf32>) -> vector<128x128xf32>
      %38 = "stable_mosaic.arith.subf"(%34, %37) {fastmath = #arith.fastmath<none>} : (vector<128x128xf32>, vector<128x128xf32>) -> vector<128x128xf32>
      %39 = "stable_mosaic.math.exp"(%38) {fastmath = #arith.fastmath<none>} : (vector<128x128xf32>) -> vector<128x128xf32>
      %40 = "stable_mosaic.tpu.matmul"(%29, %24, %33) {dimension_numbers = #tpu.dot_dimension_numbers<[1], [1], [0], [0], [0, 0, 1, 0], [], []>, transpose_lhs = false, transpose_lhs_hint = false, transpose_rhs = false} : (vector<128x64xbf16>, vector<128x64xbf16>, vector<128x128xf32>) -> vector<128x128xf32>
      %41 = "stable_mosaic.vector.broadcast"(%32) : (vector<128x1xf32>) -> vector<128x128xf32>
      %42 = "stable_mosaic.arith.subf"(%40, %41) {fastmath = #arith.fastmath<none>} : (vector<128x128xf32>, vector<128x128xf32>) -> vector<128x128xf32>
      %43 = "stable_mosaic.arith.mulf"(%42, %39) {fastmath = #arith.fastmath<none>} : (vector<128x128xf32>, vector<128x128xf32>) -> vector<128x128xf32>
      %44 = "stable_mosaic.arith.truncf"(%43) : (vector<128x128xf32>) -> vector<128x128xbf16>
      %45 = "stable_mosaic.vector.load"(%arg11, %7, %7) : (memref<128x64xf32, #tpu.memory_space<vmem>>, index, index) -> vector<128x64xf32>
      %46 = "stable_mosaic.arith.constant"() {value = dense<0.000000e+00> : vector<128x64xf32>} : () -> vector<128x64xf32>
      %47 = "stable_mosaic.tpu.matmul"(%44, %22, %46) {dimension_numbers = #tpu.dot_dimension_numbers<[1], [0], [0], [1], [0, 0, 1, 1], [], []>, transpose_lhs = false, transpose_lhs_hint = false, transpose_rhs = false} : (vector<128x128xbf16>, vector<128x64xbf16>, vector<128x64xf32>) -> vector<128x64xf32>
      %48 = "stable_mosaic.arith.addf"(%45, %47) {fastmath = #arith.fastmath<none>} : (vector<128x64xf32>, vector<128x64xf32>) -> vector<128x64xf32>
      "stable_mosaic.tpu.vector_store"(%48, %arg11, %7, %7) {add = false, operandSegmentSizes = array<i32: 1, 1, 2, 0>, strides = array<i32>} : (vector<128x64xf32>, memref<128x64xf32, #tpu.memory_space<vmem>>, index, index) -> ()
      "stable_mosaic.scf.yield"() : () -> ()
    }, {
      "stable_mosaic.scf.yield"() : () -> ()
    }) : (i1) -> ()
    %49 = "stable_mosaic.arith.cmpi"(%arg2, %0) {predicate = 0 : i64} : (i32, i32) -> i1
    %50 = "stable_mosaic.arith.extui"(%49) : (i1) -> i32
    %51 = "stable_mosaic.arith.cmpi"(%50, %0) {predicate = 1 : i64} : (i32, i32) -> i1
    "stable_mosaic.scf.if"(%51) ({
      %52 = "stable_mosaic.vector.load"(%arg11, %7, %7) : (memref<128x64xf32, #tpu.memory_space<vmem>>, index, index) -> vector<128x64xf32>
      %53 = "stable_mosaic.arith.truncf"(%52) : (vector<128x64xf32>) -> vector<128x64xbf16>
      %54 = "stable_mosaic.vector.shape_cast"(%53) : (vector<128x64xbf16>) -> vector<1x128x64xbf16>
      "stable_mosaic.tpu.vector_store"(%54, %arg12, %7, %7, %7) {add = false, operandSegmentSizes = array<i32: 1, 1, 3, 0>, strides = array<i32>} : (vector<1x128x64xbf16>, memref<1x128x64xbf16, #tpu.memory_space<vmem>>, index, index, index) -> ()
      %55 = "stable_mosaic.arith.constant"() {value = 0.000000e+00 : f32} : () -> f32
      %56 = "stable_mosaic.vector.broadcast"(%55) : (f32) -> vector<128x64xf32>
      "stable_mosaic.tpu.vector_store"(%56, %arg11, %7, %7) {add = false, operandSegmentSizes = array<i32: 1, 1, 2, 0>, strides = array<i32>} : (vector<128x64xf32>, memref<128x64xf32, #tpu.memory_space<vmem>>, index, index) -> ()
      "stable_mosaic.scf.yield"() : () -> ()
    }, {
      "stable_mosaic.scf.yield"() : () -> ()
    }) : (i1) -> ()
    "stable_mosaic.func.return"() : () -> ()
  }) {dimension_semantics = [#tpu.dimension_semantics<arbitrary>, #tpu.dimension_semantics<arbitrary>, #tpu.dimension_semantics<arbitrary>], function_type = (i32, i32, i32, memref<1x1x1xi8, #tpu.memory_space<smem>>, memref<1x1x1xi8, #tpu.memory_space<smem>>, memref<1x128x64xbf16, #tpu.memory_space<vmem>>, memref<1x128x64xbf16, #tpu.memory_space<vmem>>, memref<1x128x64xbf16, #tpu.memory_space<vmem>>, memref<1x1x128xf32, #tpu.memory_space<vmem>>, memref<1x128x64xbf16, #tpu.memory_space<vmem>>, memref<1x1x128xf32, #tpu.memory_space<vmem>>, memref<128x64xf32, #tpu.memory_space<vmem>>, memref<1x128x64xbf16, #tpu.memory_space<vmem>>) -> (), iteration_bounds = array<i64: 1, 1, 1>, scalar_prefetch = 2 : i64, scratch_operands = 0 : i64, sym_name = "splash_mha_dq_no_residuals", tpu.core_type = #tpu.core_type<tc>, window_params = [{transform_indices = @transform_0, window_bounds = array<i64: 1, 128, 64>}, {transform_indices = @transform_1, window_bounds = array<i64: 1, 128, 64>}, {transform_indices = @transform_2, window_bounds = array<i64: 1, 128, 64>}, {transform_indices = @transform_3, window_bounds = array<i64: 1, 1, 128>}, {transform_indices = @transform_4, window_bounds = array<i64: 1, 128, 64>}, {transform_indices = @transform_5, window_bounds = array<i64: 1, 1, 128>}, {pipeline_mode = #tpu.pipeline_mode<synchronous>, transform_indices = @transform_6, window_bounds = array<i64: 128, 64>}, {transform_indices = @transform_7, window_bounds = array<i64: 1, 128, 64>}]} : () -> ()
  "stable_mosaic.func.func"() ({
  ^bb0(%arg13: i32, %arg14: i32, %arg15: i32, %arg16: memref<1x1x1xi8, #tpu.memory_space<smem>>, %arg17: memref<1x1x1xi8, #tpu.memory_space<smem>>):
    %57 = "stable_mosaic.arith.constant"() {value = 0 : i32} : () -> i32
    "stable_mosaic.func.return"(%arg13, %arg14, %57) : (i32, i32, i32) -> ()
  }) {function_type = (i32, i32, i32, memref<1x1x1xi8, #tpu.memory_space<smem>>, memref<1x1x1xi8, #tpu.memory_space<smem>>) -> (i32, i32, i32), sym_name = "transform_0"} : () -> ()
  "stable_mosaic.func.func"() ({
  ^bb0(%arg18: i32, %arg19: i32, %arg20: i32, %arg21: memref<1x1x1xi8, #tpu.memory_space<smem>>, %arg22: memref<1x1x1xi8, #tpu.memory_space<smem>>):
    %58 = "stable_mosaic.arith.constant"() {value = 0 : index} : () -> index
    %59 = "stable_mosaic.arith.index_cast"(%arg19) : (i32) -> index
    %60 = "stable_mosaic.arith.index_cast"(%arg20) : (i32) -> index
    %61 = "stable_mosaic.memref.load"(%arg21, %58, %59, %60) : (memref<1x1x1xi8, #tpu.memory_space<smem>>, index, index, index) -> i8
    %62 = "stable_mosaic.arith.extsi"(%61) : (i8) -> i32
    %63 = "stable_mosaic.arith.constant"() {value = 0 : i32} : () -> i32
    "stable_mosaic.func.return"(%arg18, %62, %63) : (i32, i32, i32) -> ()
  }) {function_type = (i32, i32, i32, memref<1x1x1xi8, #tpu.memory_space<smem>>, memref<1x1x1xi8, #tpu.memory_space<smem>>) -> (i32, i32, i32), sym_name = "transform_1"} : () -> ()
  "stable_mosaic.func.func"() ({
  ^bb0(%arg23: i32, %arg24: i32, %arg25: i32, %arg26: memref<1x1x1xi8, #tpu.memory_space<smem>>, %arg27: memref<1x1x1xi8, #tpu.memory_space<smem>>):
    %64 = "stable_mosaic.arith.constant"() {value = 0 : index} : () -> index
    %65 = "stable_mosaic.arith.index_cast"(%arg24) : (i32) -> index
    %66 = "stable_mosaic.arith.index_cast"(%arg25) : (i32) -> index
    %67 = "stable_mosaic.memref.load"(%arg26, %64, %65, %66) : (memref<1x1x1xi8, #tpu.memory_space<smem>>, index, index, index) -> i8
    %68 = "stable_mosaic.arith.extsi"(%67) : (i8) -> i32
    %69 = "stable_mosaic.arith.constant"() {value = 0 : i32} : () -> i32
    "stable_mosaic.func.return"(%arg23, %68, %69) : (i32, i32, i32) -> ()
  }) {function_type = (i32, i32, i32, memref<1x1x1xi8, #tpu.memory_space<smem>>, memref<1x1x1xi8, #tpu.memory_space<smem>>) -> (i32, i32, i32), sym_name = "transform_2"} : () -> ()
  "stable_mosaic.func.func"() ({
  ^bb0(%arg28: i32, %arg29: i32, %arg30: i32, %arg31: memref<1x1x1xi8, #tpu.memory_space<smem>>, %arg32: memref<1x1x1xi8, #tpu.memory_space<smem>>):
    %70 = "stable_mosaic.arith.constant"() {value = 0 : i32} : () -> i32
    "stable_mosaic.func.return"(%arg28, %70, %arg29) : (i32, i32, i32) -> ()
  }) {function_type = (i32, i32, i32, memref<1x1x1xi8, #tpu.memory_space<smem>>, memref<1x1x1xi8, #tpu.memory_space<smem>>) -> (i32, i32, i32), sym_name = "transform_3"} : () -> ()
  "stable_mosaic.func.func"() ({
  ^bb0(%arg33: i32, %arg34: i32, %arg35: i32, %arg36: memref<1x1x1xi8, #tpu.memory_space<smem>>, %arg37: memref<1x1x1xi8, #tpu.memory_space<smem>>):
    %71 = "stable_mosaic.arith.constant"() {value = 0 : i32} : () -> i32
    "stable_mosaic.func.return"(%arg33, %arg34, %71) : (i32, i32, i32) -> ()
  }) {function_type = (i32, i32, i32, memref<1x1x1xi8, #tpu.memory_space<smem>>, memref<1x1x1xi8, #tpu.memory_space<smem>>) -> (i32, i32, i32), sym_name = "transform_4"} : () -> ()
  "stable_mosaic.func.func"() ({
  ^bb0(%arg38: i32, %arg39: i32, %arg40: i32, %arg41: memref<1x1x1xi8, #tpu.memory_space<smem>>, %arg42: memref<1x1x1xi8, #tpu.memory_space<smem>>):
    %72 = "stable_mosaic.arith.constant"() {value = 0 : i32} : () -> i32
    "stable_mosaic.func.return"(%arg38, %72, %arg39) : (i32, i32, i32) -> ()
  }) {function_type = (i32, i32, i32, memref<1x1x1xi8, #tpu.memory_space<smem>>, memref<1x1x1xi8, #tpu.memory_space<smem>>) -> (i32, i32, i32), sym_name = "transform_5"} : () -> ()
  "stable_mosaic.func.func"() ({
  ^bb0(%arg43: i32, %arg44: i32, %arg45: i32, %arg46: memref<1x1x1xi8, #tpu.memory_space<smem>>, %arg47: memref<1x1x1xi8, #tpu.memory_space<smem>>):
    %73 = "stable_mosaic.arith.constant"() {value = 0 : i32} : () -> i32
    "stable_mosaic.func.return"(%73, %73) : (i32, i32) -> ()
  }) {function_type = (i32, i32, i32, memref<1x1x1xi8, #tpu.memory_space<smem>>, memref<1x1x1xi8, #tpu.memory_space<smem>>) -> (i32, i32), sym_name = "transform_6"} : () -> ()
  "stable_mosaic.func.func"() ({
  ^bb0(%arg48: i32, %arg49: i32, %arg50: i32, %arg51: memref<1x1x1xi8, #tpu.memory_space<smem>>, %arg52: memref<1x1x1xi8, #tpu.memory_space<smem>>):
    %74 = "stable_mosaic.arith.constant"() {value = 0 : i32} : () -> i32
    "stable_mosaic.func.return"(%arg48, %arg49, %74) : (i32, i32, i32) -> ()
  }) {function_type = (i32, i32, i32, memref<1x1x1xi8, #tpu.memory_space<smem>>, memref<1x1x1xi8, #tpu.memory_space<smem>>) -> (i32, i32, i32), sym_name = "transform_7"} : () -> ()
}) {stable_mosaic.version = 13 : i64} : () -> ()
