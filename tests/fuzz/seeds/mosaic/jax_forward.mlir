"builtin.module"() ({
  "stable_mosaic.func.func"() ({
  ^bb0(%arg35: i32, %arg36: i32, %arg37: i32, %arg38: memref<1x1x1xi8, #tpu.memory_space<smem>>, %arg39: memref<1x1x1xi8, #tpu.memory_space<smem>>, %arg40: memref<1x128x64xbf16, #tpu.memory_space<vmem>>, %arg41: memref<1x128x64xbf16, #tpu.memory_space<vmem>>, %arg42: memref<1x128x64xbf16, #tpu.memory_space<vmem>>, %arg43: memref<128x128xf32, #tpu.memory_space<vmem>>, %arg44: memref<128x128xf32, #tpu.memory_space<vmem>>, %arg45: memref<128x64xf32, #tpu.memory_space<vmem>>, %arg46: memref<1x128x64xbf16, #tpu.memory_space<vmem>>):
    %41 = "stable_mosaic.arith.constant"() {value = 0 : i32} : () -> i32
    %42 = "stable_mosaic.arith.cmpi"(%arg37, %41) {predicate = 0 : i64} : (i32, i32) -> i1
    %43 = "stable_mosaic.arith.extui"(%42) : (i1) -> i32
    %44 = "stable_mosaic.arith.constant"() {value = 0 : i32} : () -> i32
    %45 = "stable_mosaic.arith.cmpi"(%43, %44) {predicate = 1 : i64} : (i32, i32) -> i1
    "stable_mosaic.scf.if"(%45) ({
      %154 = "stable_mosaic.arith.constant"() {value = 0.000000e+00 : f32} : () -> f32
      %155 = "stable_mosaic.vector.broadcast"(%154) : (f32) -> vector<128x64xf32>
      %156 = "stable_mosaic.arith.constant"() {value = 0 : index} : () -> index
      %157 = "stable_mosaic.arith.constant"() {value = 0 : index} : () -> index
      %158 = "stable_mosaic.vector.load"(%arg45, %156, %157) : (memref<128x64xf32, #tpu.memory_space<vmem>>, index, index) -> vector<128x64xf32>
      "stable_mosaic.tpu.vector_store"(%155, %arg45, %156, %157) {add = false, operandSegmentSizes = array<i32: 1, 1, 2, 0>, strides = array<i32>} : (vector<128x64xf32>, memref<128x64xf32, #tpu.memory_space<vmem>>, index, index) -> ()
      %159 = "stable_mosaic.arith.constant"() {value = -2.38197633E+38 : f32} : () -> f32
      %160 = "stable_mosaic.vector.broadcast"(%159) : (f32) -> vector<128x128xf32>
      %161 = "stable_mosaic.arith.constant"() {value = 0 : index} : () -> index
      %162 = "stable_mosaic.arith.constant"() {value = 0 : index} : () -> index
      %163 = "stable_mosaic.vector.load"(%arg43, %161, %162) : (memref<128x128xf32, #tpu.memory_space<vmem>>, index, index) -> vector<128x128xf32>
      "stable_mosaic.tpu.vector_store"(%160, %arg43, %161, %162) {add = false, operandSegmentSizes = array<i32: 1, 1, 2, 0>, strides = array<i32>} : (vector<128x128xf32>, memref<128x128xf32, #tpu.memory_space<vmem>>, index, index) -> ()
      %164 = "stable_mosaic.arith.constant"() {value = 0.000000e+00 : f32} : () -> f32
      %165 = "stable_mosaic.vector.broadcast"(%164) : (f32) -> vector<128x128xf32>
      %166 = "stable_mosaic.arith.constant"() {value = 0 : index} : () -> index
      %167 = "stable_mosaic.arith.constant"() {value = 0 : index} : () -> index
      %168 = "stable_mosaic.vector.load"(%arg44, %166, %167) : (memref<128x128xf32, #tpu.memory_space<vmem>>, index, index) -> vector<128x128xf32>
      "stable_mosaic.tpu.vector_store"(%165, %arg44, %166, %167) {add = false, operandSegmentSizes = array<i32: 1, 1, 2, 0>, strides = array<i32>} : (vector<128x128xf32>, memref<128x128xf32, #tpu.memory_space<vmem>>, index, index) -> ()
      "stable_mosaic.scf.yield"() : () -> ()
    }, {
      "stable_mosaic.scf.yield"() : () -> ()
    }) : (i1) -> ()
    %46 = "stable_mosaic.arith.constant"() {value = 0 : index} : () -> index
    %47 = "stable_mosaic.arith.index_cast"(%arg36) : (i32) -> index
    %48 = "stable_mosaic.arith.index_cast"(%arg37) : (i32) -> index
    %49 = "stable_mosaic.memref.load"(%arg39, %46, %47, %48) : (memref<1x1x1xi8, #tpu.memory_space<smem>>, index, index, index) -> i8
    %50 = "stable_mosaic.arith.extsi"(%49) : (i8) -> i32
    %51 = "stable_mosaic.arith.constant"() {value = 0 : i32} : () -> i32
    %52 = "stable_mosaic.arith.cmpi"(%50, %51) {predicate = 4 : i64} : (i32, i32) -> i1
    %53 = "stable_mosaic.arith.extui"(%52) : (i1) -> i32
    %54 = "stable_mosaic.arith.constant"() {value = 0 : i32} : () -> i32
    %55 = "stable_mosaic.arith.cmpi"(%53, %54) {predicate = 1 : i64} : (i32, i32) -> i1
    "stable_mosaic.scf.if"(%55) ({
      %94 = "stable_mosaic.arith.constant"() {value = 0 : i32} : () -> i32
      %95 = "stable_mosaic.arith.constant"() {value = 128 : i32} : () -> i32
      %96 = "stable_mosaic.arith.muli"(%94, %95) {overflowFlags = #arith.overflow<none>} : (i32, i32) -> i32
      %97 = "stable_mosaic.arith.constant"() {value = 0 : index} : () -> index
      %98 = "stable_mosaic.arith.constant"() {value = 0 : index} : () -> index
      %99 = "stable_mosaic.vector.load"(%arg43, %97, %98) : (memref<128x128xf32, #tpu.memory_space<vmem>>, index, index) -> vector<128x128xf32>
      %100 = "stable_mosaic.arith.constant"() {value = 0 : index} : () -> index
      %101 = "stable_mosaic.arith.constant"() {value = 0 : index} : () -> index
      %102 = "stable_mosaic.vector.load"(%arg44, %100, %101) : (memref<128x128xf32, #tpu.memory_space<vmem>>, index, index) -> vector<128x128xf32>
      %103 = "stable_mosaic.arith.constant"() {value = 0 : index} : () -> index
      %104 = "stable_mosaic.arith.constant"() {value = 0 : index} : () -> index
      %105 = "stable_mosaic.arith.constant"() {value = 0 : index} : () -> index
      %106 = "stable_mosaic.vector.load"(%arg40, %103, %104, %105) : (memref<1x128x64xbf16, #tpu.memory_space<vmem>>, index, index, index) -> vector<1x128x64xbf16>
      %107 = "stable_mosaic.vector.shape_cast"(%106) : (vector<1x128x64xbf16>) -> vector<128x64xbf16>
      %108 = "stable_mosaic.arith.constant"() {value = 0 : index} : () -> index
      %109 = "stable_mosaic.arith.index_cast"(%96) : (i32) -> index
      %110 = "stable_mosaic.arith.constant"() {value = 0 : index} : () -> index
      %111 = "stable_mosaic.vector.load"(%arg41, %108, %109, %110) : (memref<1x128x64xbf16, #tpu.memory_space<vmem>>, index, index, index) -> vector<1x128x64xbf16>
      %112 = "stable_mosaic.vector.shape_cast"(%111) : (vector<1x128x64xbf16>) -> vector<128x64xbf16>
      %113 = "stable_mosaic.arith.constant"() {value = dense<0.000000e+00> : vector<128x128xf32>} : () -> vector<128x128xf32>
      %114 = "stable_mosaic.tpu.matmul"(%107, %112, %113) {dimension_numbers = #tpu.dot_dimension_numbers<[1], [1], [0], [0], [0, 0, 1, 0], [], []>, transpose_lhs = false, transpose_rhs = false} : (vector<128x64xbf16>, vector<128x64xbf16>, vector<128x128xf32>) -> vector<128x128xf32>
      %115 = "stable_mosaic.arith.constant"() {value = dense<0xFF800000> : vector<128xf32>} : () -> vector<128xf32>
      %116 = "stable_mosaic.vector.multi_reduction"(%114, %115) {kind = #vector.kind<maximumf>, reduction_dims = array<i64: 1>} : (vector<128x128xf32>, vector<128xf32>) -> vector<128xf32>
      %117 = "stable_mosaic.vector.shape_cast"(%116) : (vector<128xf32>) -> vector<128x1xf32>
      %118 = "stable_mosaic.vector.broadcast"(%117) : (vector<128x1xf32>) -> vector<128x128xf32>
      %119 = "stable_mosaic.arith.maximumf"(%99, %118) {fastmath = #arith.fastmath<none>} : (vector<128x128xf32>, vector<128x128xf32>) -> vector<128x128xf32>
      %120 = "stable_mosaic.arith.subf"(%114, %119) {fastmath = #arith.fastmath<none>} : (vector<128x128xf32>, vector<128x128xf32>) -> vector<128x128xf32>
      %121 = "stable_mosaic.math.exp"(%120) {fastmath = #arith.fastmath<none>} : (vector<128x128xf32>) -> vector<128x128xf32>
      %122 = "stable_mosaic.arith.constant"() {value = dense<0.000000e+00> : vector<128xf32>} : () -> vector<128xf32>
      %123 = "stable_mosaic.vector.multi_reduction"(%121, %122) {kind = #vector.kind<add>, reduction_dims = array<i64: 1>} : (vector<128x128xf32>, vector<128xf32>) -> vector<128xf32>
      %124 = "stable_mosaic.vector.shape_cast"(%123) : (vector<128xf32>) -> vector<128x1xf32>
      %125 = "stable_mosaic.vector.broadcast"(%124) : (vector<128x1xf32>) -> vector<128x128xf32>
      %126 = "stable_mosaic.arith.subf"(%99, %119) {fastmath = #arith.fastmath<none>} : (vector<128x128xf32>, vector<128x128xf32>) -> vector<128x128xf32>
      %127 = "stable_mosaic.math.exp"(%126) {fastmath = #arith.fastmath<none>} : (vector<128x128xf32>) -> vector<128x128xf32>
      %128 = "stable_mosaic.arith.mulf"(%127, %102) {fastmath = #arith.fastmath<none>} : (vector<128x128xf32>, vector<128x128xf32>) -> vector<128x128xf32>
      %129 = "stable_mosaic.arith.addf"(%125, %128) {fastmath = #arith.fastmath<none>} : (vector<128x128xf32>, vector<128x128xf32>) -> vector<128x128xf32>
      %130 = "stable_mosaic.arith.constant"() {value = 0 : index} : () -> index
      %131 = "stable_mosaic.arith.constant"() {value = 0 : index} : () -> index
      %132 = "stable_mosaic.vector.load"(%arg43, %130, %131) : (memref<128x128xf32, #tpu.memory_space<vmem>>, index, index) -> vector<128x128xf32>
      "stable_mosaic.tpu.vector_store"(%119, %arg43, %130, %131) {add = false, operandSegmentSizes = array<i32: 1, 1, 2, 0>, strides = array<i32>} : (vector<128x128xf32>, memref<128x128xf32, #tpu.memory_space<vmem>>, index, index) -> ()
      %133 = "stable_mosaic.arith.constant"() {value = 0 : index} : () -> index
      %134 = "stable_mosaic.arith.constant"() {value = 0 : index} : () -> index
      %135 = "stable_mosaic.vector.load"(%arg44, %133, %134) : (memref<128x128xf32, #tpu.memory_space<vmem>>, index, index) -> vector<128x128xf32>
      "stable_mosaic.tpu.vector_store"(%129, %arg44, %133, %134) {add = false, operandSegmentSizes = array<i32: 1, 1, 2, 0>, strides = array<i32>} : (vector<128x128xf32>, memref<128x128xf32, #tpu.memory_space<vmem>>, index, index) -> ()
      %136 = "stable_mosaic.arith.constant"() {value = 0 : index} : () -> index
      %137 = "stable_mosaic.arith.index_cast"(%96) : (i32) -> index
      %138 = "stable_mosaic.arith.constant"() {value = 0 : index} : () -> index
      %139 = "stable_mosaic.vector.load"(%arg42, %136, %137, %138) : (memref<1x128x64xbf16, #tpu.memory_space<vmem>>, index, index, index) -> vector<1x128x64xbf16>
      %140 = "stable_mosaic.vector.shape_cast"(%139) : (vector<1x128x64xbf16>) -> vector<128x64xbf16>
      %141 = "stable_mosaic.arith.extf"(%140) : (vector<128x64xbf16>) -> vector<128x64xf32>
      %142 = "stable_mosaic.arith.constant"() {value = dense<0.000000e+00> : vector<128x64xf32>} : () -> vector<128x64xf32>
      %143 = "stable_mosaic.tpu.matmul"(%121, %141, %142) {dimension_numbers = #tpu.dot_dimension_numbers<[1], [0], [0], [1], [0, 0, 1, 1], [], []>, transpose_lhs = false, transpose_rhs = false} : (vector<128x128xf32>, vector<128x64xf32>, vector<128x64xf32>) -> vector<128x64xf32>
      %144 = "stable_mosaic.vector.extract_strided_slice"(%127) {offsets = [0, 0], sizes = [128, 64], strides = [1, 1]} : (vector<128x128xf32>) -> vector<128x64xf32>
      %145 = "stable_mosaic.arith.constant"() {value = 0 : index} : () -> index
      %146 = "stable_mosaic.arith.constant"() {value = 0 : index} : () -> index
      %147 = "stable_mosaic.vector.load"(%arg45, %145, %146) : (memref<128x64xf32, #tpu.memory_space<vmem>>, index, index) -> vector<128x64xf32>
      %148 = "stable_mosaic.arith.mulf"(%144, %147) {fastmath = #arith.fastmath<none>} : (vector<128x64xf32>, vector<128x64xf32>) -> vector<128x64xf32>
      %149 = "stable_mosaic.arith.addf"(%148, %143) {fastmath = #arith.fastmath<none>} : (vector<128x64xf32>, vector<128x64xf32>) -> vector<128x64xf32>
      %150 = "stable_mosaic.arith.constant"() {value = 0 : index} : () -> index
      %151 = "stable_mosaic.arith.constant"() {value = 0 : index} : () -> index
      %152 = "stable_mosaic.vector.load"(%arg45, %150, %151) : (memref<128x64xf32, #tpu.memory_space<vmem>>, index, index) -> vector<128x64xf32>
      "stable_mosaic.tpu.vector_store"(%149, %arg45, %150, %151) {add = false, operandSegmentSizes = array<i32: 1, 1, 2, 0>, strides = array<i32>} : (vector<128x64xf32>, memref<128x64xf32, #tpu.memory_space<vmem>>, index, index) -> ()
      %153 = "stable_mosaic.arith.constant"() {value = 1 : i32} : () -> i32
      "stable_mosaic.scf.yield"() : () -> ()
    }, {
      "stable_mosaic.scf.yield"() : () -> ()
    }) : (i1) -> ()
    %56 = "stable_mosaic.arith.constant"() {value = 0 : i32} : () -> i32
    %57 = "stable_mosaic.arith.cmpi"(%arg37, %56) {predicate = 0 : i64} : (i32, i32) -> i1
    %58 = "stable_mosaic.arith.extui"(%57) : (i1) -> i32
    %59 = "stable_mosaic.arith.constant"() {value = 0 : i32} : () -> i32
    %60 = "stable_mosaic.arith.cmpi"(%58, %59) {predicate = 1 : i64} : (i32, i32) -> i1
    "stable_mosaic.scf.if"(%60) ({
      %61 = "stable_mosaic.arith.constant"() {value = 0 : index} : () -> index
      %62 = "stable_mosaic.arith.constant"() {value = 0 : index} : () -> index
      %63 = "stable_mosaic.vector.load"(%arg44, %61, %62) : (memref<128x128xf32, #tpu.memory_space<vmem>>, index, index) -> vector<128x128xf32>
      %64 = "stable_mosaic.arith.constant"() {value = 1.000000e+00 : f32} : () -> f32
      %65 = "stable_mosaic.vector.broadcast"(%64) : (f32) -> vector<128x128xf32>
      %66 = "stable_mosaic.arith.divf"(%65, %63) {fastmath = #arith.fastmath<none>} : (vector<128x128xf32>, vector<128x128xf32>) -> vector<128x128xf32>
      %67 = "stable_mosaic.vector.extract_strided_slice"(%66) {offsets = [0, 0], sizes = [128, 64], strides = [1, 1]} : (vector<128x128xf32>) -> vector<128x64xf32>
      %68 = "stable_mosaic.arith.constant"() {value = 0 : index} : () -> index
      %69 = "stable_mosaic.arith.constant"() {value = 0 : index} : () -> index
      %70 = "stable_mosaic.vector.load"(%arg45, %68, %69) : (memref<128x64xf32, #tpu.memory_space<vmem>>, index, index) -> vector<128x64xf32>
      %71 = "stable_mosaic.arith.mulf"(%70, %67) {fastmath = #arith.fastmath<none>} : (vector<128x64xf32>, vector<128x64xf32>) -> vector<128x64xf32>
      %72 = "stable_mosaic.arith.truncf"(%71) : (vector<128x64xf32>) -> vector<128x64xbf16>
      %73 = "stable_mosaic.arith.constant"() {value = 0 : index} : () -> index
      %74 = "stable_mosaic.arith.constant"() {value = 0 : index} : () -> index
      %75 = "stable_mosaic.arith.constant"() {value = 0 : index} : () -> index
      %76 = "stable_mosaic.vector.load"(%arg46, %73, %74, %75) : (memref<1x128x64xbf16, #tpu.memory_space<vmem>>, index, index, index) -> vector<1x128x64xbf16>
      %77 = "stable_mosaic.vector.shape_cast"(%76) : (vector<1x128x64xbf16>) -> vector<128x64xbf16>
      %78 = "stable_mosaic.vector.shape_cast"(%72) : (vector<128x64xbf16>) -> vector<1x128x64xbf16>
      "stable_mosaic.tpu.vector_store"(%78, %arg46, %73, %74, %75) {add = false, operandSegmentSizes = array<i32: 1, 1, 3, 0>, strides = array<i32>} : (vector<1x128x64xbf16>, memref<1x128x64xbf16, #tpu.memory_space<vmem>>, index, index, index) -> ()
      %79 = "stable_mosaic.arith.constant"() {value = 0.000000e+00 : f32} : () -> f32
      %80 = "stable_mosaic.vector.broadcast"(%79) : (f32) -> vector<128x128xf32>
      %81 = "stable_mosaic.arith.constant"() {value = 0 : index} : () -> index
      %82 = "stable_mosaic.arith.constant"() {value = 0 : index} : () -> index
      %83 = "stable_mosaic.vector.load"(%arg43, %81, %82) : (memref<128x128xf32, #tpu.memory_space<vmem>>, index, index) -> vector<128x128xf32>
      "stable_mosaic.tpu.vector_store"(%80, %arg43, %81, %82) {add = false, operandSegmentSizes = array<i32: 1, 1, 2, 0>, strides = array<i32>} : (vector<128x128xf32>, memref<128x128xf32, #tpu.memory_space<vmem>>, index, index) -> ()
      %84 = "stable_mosaic.arith.constant"() {value = 0.000000e+00 : f32} : () -> f32
      %85 = "stable_mosaic.vector.broadcast"(%84) : (f32) -> vector<128x128xf32>
      %86 = "stable_mosaic.arith.constant"() {value = 0 : index} : () -> index
      %87 = "stable_mosaic.arith.constant"() {value = 0 : index} : () -> index
      %88 = "stable_mosaic.vector.load"(%arg44, %86, %87) : (memref<128x128xf32, #tpu.memory_space<vmem>>, index, index) -> vector<128x128xf32>
      "stable_mosaic.tpu.vector_store"(%85, %arg44, %86, %87) {add = false, operandSegmentSizes = array<i32: 1, 1, 2, 0>, strides = array<i32>} : (vector<128x128xf32>, memref<128x128xf32, #tpu.memory_space<vmem>>, index, index) -> ()
      %89 = "stable_mosaic.arith.constant"() {value = 0.000000e+00 : f32} : () -> f32
      %90 = "stable_mosaic.vector.broadcast"(%89) : (f32) -> vector<128x64xf32>
      %91 = "stable_mosaic.arith.constant"() {value = 0 : index} : () -> index
      %92 = "stable_mosaic.arith.constant"() {value = 0 : index} : () -> index
      %93 = "stable_mosaic.vector.load"(%arg45, %91, %92) : (memref<128x64xf32, #tpu.memory_space<vmem>>, index, index) -> vector<128x64xf32>
      "stable_mosaic.tpu.vector_store"(%90, %arg45, %91, %92) {add = false, operandSegmentSizes = array<i32: 1, 1, 2, 0>, strides = array<i32>} : (vector<128x64xf32>, memref<128x64xf32, #tpu.memory_space<vmem>>, index, index) -> ()
      "stable_mosaic.scf.yield"() : () -> ()
    }, {
      "stable_mosaic.scf.yield"() : () -> ()
    }) : (i1) -> ()
    "stable_mosaic.func.return"() : () -> ()
  }) {dimension_semantics = [#tpu.dimension_semantics<parallel>, #tpu.dimension_semantics<arbitrary>, #tpu.dimension_semantics<arbitrary>], function_type = (i32, i32, i32, memref<1x1x1xi8, #tpu.memory_space<smem>>, memref<1x1x1xi8, #tpu.memory_space<smem>>, memref<1x128x64xbf16, #tpu.memory_space<vmem>>, memref<1x128x64xbf16, #tpu.memory_space<vmem>>, memref<1x128x64xbf16, #tpu.memory_space<vmem>>, memref<128x128xf32, #tpu.memory_space<vmem>>, memref<128x128xf32, #tpu.memory_space<vmem>>, memref<128x64xf32, #tpu.memory_space<vmem>>, memref<1x128x64xbf16, #tpu.memory_space<vmem>>) -> (), iteration_bounds = array<i64: 1, 1, 1>, scalar_prefetch = 2 : i64, scratch_operands = 0 : i64, sym_name = "splash_mha_fwd_no_residuals", tpu.core_type = #tpu.core_type<tc>, window_params = [{transform_indices = @transform_0, window_bounds = array<i64: 1, 128, 64>}, {transform_indices = @transform_1, window_bounds = array<i64: 1, 128, 64>}, {transform_indices = @transform_2, window_bounds = array<i64: 1, 128, 64>}, {pipeline_mode = #tpu.pipeline_mode<synchronous>, transform_indices = @transform_3, window_bounds = array<i64: 128, 128>}, {pipeline_mode = #tpu.pipeline_mode<synchronous>, transform_indices = @transform_4, window_bounds = array<i64: 128, 128>}, {pipeline_mode = #tpu.pipeline_mode<synchronous>, transform_indices = @transform_5, window_bounds = array<i64: 128, 64>}, {transform_indices = @transform_6, window_bounds = array<i64: 1, 128, 64>}]} : () -> ()
  "stable_mosaic.func.func"() ({
  ^bb0(%arg30: i32, %arg31: i32, %arg32: i32, %arg33: memref<1x1x1xi8, #tpu.memory_space<smem>>, %arg34: memref<1x1x1xi8, #tpu.memory_space<smem>>):
    %39 = "stable_mosaic.arith.constant"() {value = 0 : i32} : () -> i32
    %40 = "stable_mosaic.arith.constant"() {value = 0 : i32} : () -> i32
    "stable_mosaic.func.return"(%arg30, %arg31, %39) : (i32, i32, i32) -> ()
  }) {function_type = (i32, i32, i32, memref<1x1x1xi8, #tpu.memory_space<smem>>, memref<1x1x1xi8, #tpu.memory_space<smem>>) -> (i32, i32, i32), sym_name = "transform_0"} : () -> ()
  "stable_mosaic.func.func"() ({
  ^bb0(%arg25: i32, %arg26: i32, %arg27: i32, %arg28: memref<1x1x1xi8, #tpu.memory_space<smem>>, %arg29: memref<1x1x1xi8, #tpu.memory_space<smem>>):
    %25 = "stable_mosaic.arith.constant"() {value = 0 : index} : () -> index
    %26 = "stable_mosaic.arith.index_cast"(%arg26) : (i32) -> index
    %27 = "stable_mosaic.arith.index_cast"(%arg27) : (i32) -> index
    %28 = "stable_mosaic.memref.load"(%arg29, %25, %26, %27) : (memref<1x1x1xi8, #tpu.memory_space<smem>>, index, index, index) -> i8
    %29 = "stable_mosaic.arith.extsi"(%28) : (i8) -> i32
    %30 = "stable_mosaic.arith.constant"() {value = 0 : i32} : () -> i32
    %31 = "stable_mosaic.arith.cmpi"(%29, %30) {predicate = 4 : i64} : (i32, i32) -> i1
    %32 = "stable_mosaic.arith.constant"() {value = 0 : index} : () -> index
    %33 = "stable_mosaic.arith.index_cast"(%arg26) : (i32) -> index
    %34 = "stable_mosaic.arith.index_cast"(%arg27) : (i32) -> index
    %35 = "stable_mosaic.memref.load"(%arg28, %32, %33, %34) : (memref<1x1x1xi8, #tpu.memory_space<smem>>, index, index, index) -> i8
    %36 = "stable_mosaic.arith.extsi"(%35) : (i8) -> i32
    %37 = "stable_mosaic.arith.constant"() {value = 0 : i32} : () -> i32
    %38 = "stable_mosaic.arith.constant"() {value = 0 : i32} : () -> i32
    "stable_mosaic.func.return"(%arg25, %36, %37) : (i32, i32, i32) -> ()
  }) {function_type = (i32, i32, i32, memref<1x1x1xi8, #tpu.memory_space<smem>>, memref<1x1x1xi8, #tpu.memory_space<smem>>) -> (i32, i32, i32), sym_name = "transform_1"} : () -> ()
  "stable_mosaic.func.func"() ({
  ^bb0(%arg20: i32, %arg21: i32, %arg22: i32, %arg23: memref<1x1x1xi8, #tpu.memory_space<smem>>, %arg24: memref<1x1x1xi8, #tpu.memory_space<smem>>):
    %11 = "stable_mosaic.arith.constant"() {value = 0 : index} : () -> index
    %12 = "stable_mosaic.arith.index_cast"(%arg21) : (i32) -> index
    %13 = "stable_mosaic.arith.index_cast"(%arg22) : (i32) -> index
    %14 = "stable_mosaic.memref.load"(%arg24, %11, %12, %13) : (memref<1x1x1xi8, #tpu.memory_space<smem>>, index, index, index) -> i8
    %15 = "stable_mosaic.arith.extsi"(%14) : (i8) -> i32
    %16 = "stable_mosaic.arith.constant"() {value = 0 : i32} : () -> i32
    %17 = "stable_mosaic.arith.cmpi"(%15, %16) {predicate = 4 : i64} : (i32, i32) -> i1
    %18 = "stable_mosaic.arith.constant"() {value = 0 : index} : () -> index
    %19 = "stable_mosaic.arith.index_cast"(%arg21) : (i32) -> index
    %20 = "stable_mosaic.arith.index_cast"(%arg22) : (i32) -> index
    %21 = "stable_mosaic.memref.load"(%arg23, %18, %19, %20) : (memref<1x1x1xi8, #tpu.memory_space<smem>>, index, index, index) -> i8
    %22 = "stable_mosaic.arith.extsi"(%21) : (i8) -> i32
    %23 = "stable_mosaic.arith.constant"() {value = 0 : i32} : () -> i32
    %24 = "stable_mosaic.arith.constant"() {value = 0 : i32} : () -> i32
    "stable_mosaic.func.return"(%arg20, %22, %23) : (i32, i32, i32) -> ()
  }) {function_type = (i32, i32, i32, memref<1x1x1xi8, #tpu.memory_space<smem>>, memref<1x1x1xi8, #tpu.memory_space<smem>>) -> (i32, i32, i32), sym_name = "transform_2"} : () -> ()
  "stable_mosaic.func.func"() ({
  ^bb0(%arg15: i32, %arg16: i32, %arg17: i32, %arg18: memref<1x1x1xi8, #tpu.memory_space<smem>>, %arg19: memref<1x1x1xi8, #tpu.memory_space<smem>>):
    %8 = "stable_mosaic.arith.constant"() {value = 0 : i32} : () -> i32
    %9 = "stable_mosaic.arith.constant"() {value = 0 : i32} : () -> i32
    %10 = "stable_mosaic.arith.constant"() {value = 0 : i32} : () -> i32
    "stable_mosaic.func.return"(%8, %9) : (i32, i32) -> ()
  }) {function_type = (i32, i32, i32, memref<1x1x1xi8, #tpu.memory_space<smem>>, memref<1x1x1xi8, #tpu.memory_space<smem>>) -> (i32, i32), sym_name = "transform_3"} : () -> ()
  "stable_mosaic.func.func"() ({
  ^bb0(%arg10: i32, %arg11: i32, %arg12: i32, %arg13: memref<1x1x1xi8, #tpu.memory_space<smem>>, %arg14: memref<1x1x1xi8, #tpu.memory_space<smem>>):
    %5 = "stable_mosaic.arith.constant"() {value = 0 : i32} : () -> i32
    %6 = "stable_mosaic.arith.constant"() {value = 0 : i32} : () -> i32
    %7 = "stable_mosaic.arith.constant"() {value = 0 : i32} : () -> i32
    "stable_mosaic.func.return"(%5, %6) : (i32, i32) -> ()
  }) {function_type = (i32, i32, i32, memref<1x1x1xi8, #tpu.memory_space<smem>>, memref<1x1x1xi8, #tpu.memory_space<smem>>) -> (i32, i32), sym_name = "transform_4"} : () -> ()
  "stable_mosaic.func.func"() ({
  ^bb0(%arg5: i32, %arg6: i32, %arg7: i32, %arg8: memref<1x1x1xi8, #tpu.memory_space<smem>>, %arg9: memref<1x1x1xi8, #tpu.memory_space<smem>>):
    %2 = "stable_mosaic.arith.constant"() {value = 0 : i32} : () -> i32
    %3 = "stable_mosaic.arith.constant"() {value = 0 : i32} : () -> i32
    %4 = "stable_mosaic.arith.constant"() {value = 0 : i32} : () -> i32
    "stable_mosaic.func.return"(%2, %3) : (i32, i32) -> ()
  }) {function_type = (i32, i32, i32, memref<1x1x1xi8, #tpu.memory_space<smem>>, memref<1x1x1xi8, #tpu.memory_space<smem>>) -> (i32, i32), sym_name = "transform_5"} : () -> ()
  "stable_mosaic.func.func"() ({
  ^bb0(%arg0: i32, %arg1: i32, %arg2: i32, %arg3: memref<1x1x1xi8, #tpu.memory_space<smem>>, %arg4: memref<1x1x1xi8, #tpu.memory_space<smem>>):
    %0 = "stable_mosaic.arith.constant"() {value = 0 : i32} : () -> i32
    %1 = "stable_mosaic.arith.constant"() {value = 0 : i32} : () -> i32
    "stable_mosaic.func.return"(%arg0, %arg1, %0) : (i32, i32, i32) -> ()
  }) {function_type = (i32, i32, i32, memref<1x1x1xi8, #tpu.memory_space<smem>>, memref<1x1x1xi8, #tpu.memory_space<smem>>) -> (i32, i32, i32), sym_name = "transform_6"} : () -> ()
}) {stable_mosaic.version = 11 : i64} : () -> ()
