//! The host-pointer product against the plain loop, and what goes wrong.

use lowbit::{Bits, Model, QuantizedMm};

fn value(row: &[u8], k: usize, bits: usize) -> i32 {
    let code = (row[k * bits / 8] >> (k * bits % 8)) as i32 & ((1 << bits) - 1);
    match bits {
        1 => 2 * code - 1,
        2 => code - 2,
        _ if code >= 1 << (bits - 1) => code - (1 << bits),
        _ => code,
    }
}

#[test]
fn every_width_agrees_with_the_plain_loop() {
    let mut state = 1u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state
    };
    for bits in [Bits::One, Bits::Two, Bits::Four, Bits::Eight] {
        for (m, n, k) in [(1, 7, 33), (3, 20, 130)] {
            let mut product = QuantizedMm::new(bits, m, n, k);
            product.input_stride += 1;
            product.weight_stride += 2;
            product.output_stride += 3;
            let input: Vec<f32> = (0..m * product.input_stride).map(|_| next() as i32 as f32 / 2147483648.0).collect();
            let weight: Vec<u8> = (0..n * product.weight_stride).map(|_| (next() >> 24) as u8).collect();
            let bias: Vec<f32> = (0..n).map(|i| i as f32).collect();
            let mut output = vec![f32::NAN; (m * product.output_stride) as usize];
            product.run(&input, &weight, 0.25, Some(&bias), &mut output).unwrap();
            for i in 0..m as usize {
                for j in 0..n as usize {
                    let row = &weight[j * product.weight_stride as usize..];
                    let terms = (0..k as usize).map(|p| {
                        0.25 * f64::from(input[i * product.input_stride as usize + p]) * f64::from(value(row, p, bits as usize))
                    });
                    let (sum, size) = terms.fold((f64::from(bias[j]), f64::from(bias[j])), |(s, a), t| (s + t, a + t.abs()));
                    let got = f64::from(output[i * product.output_stride as usize + j]);
                    assert!((got - sum).abs() <= 1e-6 * size, "{bits:?} [{i}, {j}]: {got} wanted {sum}");
                }
                assert!(output[i * product.output_stride as usize + n as usize].is_nan(), "wrote behind a row");
            }
        }
    }
}

#[test]
fn short_slices_are_errors() {
    let product = QuantizedMm::new(Bits::Two, 2, 2, 8);
    let mut output = [0.0; 4];
    let error = product.run(&[0.0; 15], &[0; 4], 1.0, None, &mut output).unwrap_err();
    assert!(error.message.contains("input"), "{error}");
    assert!(product.run(&[0.0; 16], &[0; 3], 1.0, None, &mut output).is_err());
    assert!(product.run(&[0.0; 16], &[0; 4], 1.0, Some(&[0.0]), &mut output).is_err());
    assert!(product.run(&[0.0; 16], &[0; 4], 1.0, None, &mut output).is_ok());
}

#[test]
fn a_missing_model_says_so() {
    let error = Model::open("/nonexistent/model", 0).err().unwrap();
    assert!(error.message.contains("/nonexistent/model"), "{error}");
    assert!(!lowbit::version().is_empty());
}
