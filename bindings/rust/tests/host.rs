//! The host-pointer product against the plain loop, and what goes wrong.

use lowbit::{Bits, Fp8Matrix, Generate, Model, ModelOptions, QuantizedMm, Session};
use std::time::Duration;

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
fn integers_of_few_bits() {
    let (m, n, k) = (2, 48, 64);
    let x: Vec<f32> = (0..m * k).map(|i| ((i * 2_654_435_761) % 1000) as f32 / 500.0 - 1.0).collect();
    let codes: Vec<u8> = (0..n * k / 4).map(|i| ((i * 40_503) >> 4) as u8).collect();
    let (q, s) = lowbit::quantize_activations_int8(&x, m, k).unwrap();
    let largest = x[..k].iter().fold(0.0f32, |a, v| a.max(v.abs()));
    assert_eq!(s[0], 127.0 / largest);
    assert!((0..k).all(|c| (f32::from(q[c]) / s[0] - x[c]).abs() <= 0.51 / s[0]));
    let mut weight = lowbit::Int2Weight { codes: &codes, tiles: false, scales: &[0.5, 2.0], row_ends: &[32, 48], n, k };
    let y = lowbit::bitlinear_int8xint2(&q, &s, m, &weight).unwrap();
    for i in 0..m {
        for j in 0..n {
            let sum: i32 = (0..k).map(|c| i32::from(q[i * k + c]) * value(&codes[j * k / 4..], c, 2)).sum();
            assert_eq!(y[i * n + j], sum as f32 / s[i] * if j < 32 { 0.5 } else { 2.0 });
        }
    }
    let tiles = lowbit::int2_to_tiles(&codes, n, k).unwrap();
    assert_ne!(tiles, codes);
    assert_eq!(lowbit::int2_from_tiles(&tiles, n, k).unwrap(), codes);
    (weight.codes, weight.tiles) = (&tiles, true);
    assert_eq!(lowbit::bitlinear_int8xint2(&q, &s, m, &weight).unwrap(), y);
    weight.row_ends = &[32];
    assert!(lowbit::bitlinear_int8xint2(&q, &s, m, &weight).is_err());
    assert!(lowbit::int2_to_tiles(&codes[..24 * 16], 24, 64).unwrap_err().message.contains("multiples"));

    let (bits, scales) = lowbit::binarize_activations(&x, m, k).unwrap();
    let ws: Vec<f32> = (0..n / 2).map(|j| j as f32 + 0.5).collect();
    let y = lowbit::binary_matmul(
        lowbit::BitRows { bits: &bits, scales: &scales }, lowbit::BitRows { bits: &codes[..n / 2 * k / 8], scales: &ws }, m, n / 2, k,
    ).unwrap();
    for i in 0..m {
        for (j, ws) in ws.iter().enumerate() {
            let sum: i32 = (0..k).map(|c| value(&bits[i * k / 8..], c, 1) * value(&codes[j * k / 8..], c, 1)).sum();
            assert_eq!(y[i * n / 2 + j], (sum as f32 * ws).mul_add(scales[i], 0.0));
        }
    }
}

#[test]
fn fp8_in_blocks() {
    let (m, n, k) = (3, 130, 200);
    let number = |i: usize| ((i * 2_654_435_761) % 1000) as f32 / 500.0 - 1.0;
    let x: Vec<f32> = (0..m * k).map(number).collect();
    let w: Vec<f32> = (0..n * k).map(|i| number(i + 7777)).collect();
    let rows = Fp8Matrix::activations(&x, m, k).unwrap();
    let weights = Fp8Matrix::weights(&w, n, k).unwrap();
    assert_eq!((rows.scales.len(), weights.scales.len()), (6, 4));
    let largest = x[..128].iter().fold(0.0f32, |a, v| a.max(v.abs()));
    assert_eq!(rows.scales[0], largest / 448.0);
    let (real_x, real_w) = (rows.dequantize().unwrap(), weights.dequantize().unwrap());
    let y = rows.multiply(&weights).unwrap();
    for i in 0..m {
        for j in 0..n {
            let terms = (0..k).map(|p| f64::from(real_x[i * k + p]) * f64::from(real_w[j * k + p]));
            let (sum, size) = terms.fold((0.0, 0.0), |(s, a), t| (s + t, a + t.abs()));
            assert!((f64::from(y[i * n + j]) - sum).abs() <= 1e-5 * size, "[{i}, {j}]");
        }
    }
    assert!(Fp8Matrix::activations(&x, m, k + 1).is_err());
    assert!(weights.multiply(&weights).unwrap_err().message.contains("blocks of 128"));
    assert!(Fp8Matrix { codes: vec![0; 5], ..rows }.multiply(&weights).is_err());
}

#[test]
fn a_missing_model_says_so() {
    let error = Model::open("/nonexistent/model", 0).err().unwrap();
    assert!(error.message.contains("/nonexistent/model"), "{error}");
    assert!(!lowbit::version().is_empty());
}

/// A small model, where it is.
fn stories() -> Option<String> {
    let data = std::env::var("LOWBIT_DATA").unwrap_or(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/data").into());
    let path = format!("{data}/lm/stories260K");
    if !std::path::Path::new(&path).is_dir() {
        eprintln!("no model to try: {path}");
        return None;
    }
    Some(path)
}

#[test]
fn a_model_reads_and_writes_text() {
    let Some(path) = stories() else { return };
    let mut model = Model::open(&path, 64).unwrap();
    let tokens = model.tokenize("Once upon a time", true, false).unwrap();
    assert_eq!(tokens[0], 1);
    assert_eq!(model.detokenize(&tokens).unwrap(), "Once upon a time");
    assert!(model.detokenize(&[-1]).is_err());
    assert!(model.chat_text("{}").unwrap_err().message.contains("no chat template"));
    let how = Generate { max_tokens: 12, temperature: 0.0, ..Generate::default() };
    let mut write = |seed| {
        let (mut text, mut calls) = (String::new(), 0);
        model.truncate(0).unwrap();
        model.generate(&tokens, &Generate { seed, ..how.clone() }, |piece| { text += piece; calls += 1; true }).unwrap();
        (text, calls)
    };
    let (text, calls) = write(0);
    assert!(calls > 1 && text.contains("there"), "{text}");
    assert_eq!(write(1).0, text);
    model.truncate(0).unwrap();
    let mut calls = 0;
    model.generate(&tokens, &how, |_| { calls += 1; calls < 2 }).unwrap();
    assert_eq!(calls, 2);
    let panics = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| model.generate(&tokens, &how, |_| panic!("heard enough"))));
    assert!(panics.is_err());
    assert!(model.generate(&tokens, &Generate { temperature: -1.0, ..how.clone() }, |_| true).unwrap_err().message.contains("temperature"));
}

fn write(session: &mut Session, prompt: &[i32], seed: u64) -> String {
    let mut text = String::new();
    let how = Generate { max_tokens: 20, seed, ignore_eos: true, ..Generate::default() };
    session.generate(prompt, &how, |piece| { text += piece; true }).unwrap();
    text
}

#[test]
fn generations_are_steered_and_explained() {
    let Some(path) = stories() else { return };
    let model = Model::open(&path, 64).unwrap();
    let prompt = model.tokenize("Once upon a time", true, false).unwrap();
    let how = Generate { max_tokens: 8, temperature: 0.0, ignore_eos: true, ..Generate::default() };
    let run = |how: &Generate| {
        let (mut text, mut tokens) = (String::new(), Vec::new());
        let mut session = model.session().unwrap();
        session.generate_with_logprobs(&prompt, how, 2, |token| tokens.push(token.clone()), |piece| { text += piece; true }).map(|()| (text, tokens))
    };
    let (text, tokens) = run(&how).unwrap();
    assert_eq!(tokens.len(), 8);
    for token in &tokens {
        assert_eq!(token.top.len(), 2);
        assert_eq!(token.top[0], (token.token, token.logprob));
        assert!(token.logprob <= 0.0 && token.top[1].1 <= token.logprob);
    }
    let stop = text[3..6].to_string();
    let end = text.find(&stop).unwrap();
    assert_eq!(run(&Generate { stop: vec!["never there".into(), stop], ..how.clone() }).unwrap().0, text[..end]);
    let first = tokens[0].token;
    let without = run(&Generate { logit_bias: vec![(first, f32::NEG_INFINITY)], ..how.clone() }).unwrap().1;
    assert!(without.iter().all(|token| token.token != first) && without[0].top[0].0 == first);
    let alone = run(&Generate { allowed_tokens: Some(vec![first as u32]), ..how.clone() }).unwrap().1;
    assert!(alone.iter().all(|token| token.token == first));
    let varied = run(&Generate { presence_penalty: 100.0, ..how.clone() }).unwrap().1;
    assert!((1..8).all(|i| varied[..i].iter().all(|before| before.token != varied[i].token)));
    assert!(run(&Generate { allowed_tokens: Some(Vec::new()), ..how.clone() }).is_err());
    assert!(run(&Generate { stop: vec![String::new()], ..how.clone() }).is_err());
    let panics = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        model.session().unwrap().generate_with_logprobs(&prompt, &how, 0, |_| panic!("heard enough"), |_| true)
    }));
    assert!(panics.is_err());
}

#[test]
fn sessions_fork_and_go_back() {
    let Some(path) = stories() else { return };
    let model = Model::open(&path, 64).unwrap();
    let tokens = model.tokenize("Once upon a time", true, false).unwrap();
    let mut one = model.session().unwrap();
    assert!(one.is_empty() && one.logits().is_none());
    let all = one.append(&tokens).unwrap().to_vec();
    let mut two = one.fork().unwrap();
    assert_eq!(two.logits().unwrap(), all);
    assert_ne!(one.append(&[9]).unwrap(), two.append(&[10]).unwrap());
    assert_eq!((one.len(), two.len()), (tokens.len() + 1, tokens.len() + 1));
    one.truncate(2).unwrap();
    assert!(one.logits().is_none() && one.truncate(3).is_err());
    assert_eq!(one.append(&tokens[2..]).unwrap(), all);
    let file = std::env::temp_dir().join(format!("lowbit-session-{}", std::process::id()));
    let file = file.to_str().unwrap();
    one.save(file).unwrap();
    let mut three = model.session().unwrap();
    three.load(file).unwrap();
    assert_eq!((three.tokens(), three.logits().unwrap()), (tokens.clone(), &all[..]));
    assert_eq!(three.append(&[9]).unwrap(), one.append(&[9]).unwrap());
    std::fs::remove_file(file).unwrap();
    assert!(three.load(file).is_err() && three.len() == tokens.len() + 1);
    drop(model);
    two.truncate(2).unwrap();
    assert_eq!(two.append(&tokens[2..]).unwrap(), all, "a session needs no model beside it");
}

#[test]
fn sessions_append_together_what_each_appends_alone() {
    let Some(path) = stories() else { return };
    let model = Model::open(&path, 64).unwrap();
    let texts: [&[i32]; 3] = [&[1, 5, 6], &[1], &[1, 9, 10, 11, 12]];
    let mut sessions: Vec<_> = texts.iter().map(|_| model.session().unwrap()).collect();
    let mut parts: Vec<_> = sessions.iter_mut().zip(texts).collect();
    Session::append_together(&mut parts).unwrap();
    parts[1].1 = &[];
    assert!(Session::append_together(&mut parts).is_err());
    for (session, tokens) in sessions.iter_mut().zip(texts) {
        assert_eq!(session.len(), tokens.len());
        let next = session.append(&[7]).unwrap().to_vec();
        let mut alone = model.session().unwrap();
        alone.append(tokens).unwrap();
        assert_eq!(alone.append(&[7]).unwrap(), next);
    }
}

#[test]
fn threads_write_what_each_writes_alone() {
    let Some(path) = stories() else { return };
    let model = Model::open_with(&path, &ModelOptions { context: 64, threads: 2, ..ModelOptions::default() }).unwrap();
    let tokens = model.tokenize("Once upon a time", true, false).unwrap();
    let mut prefix = model.session().unwrap();
    prefix.append(&tokens).unwrap();
    let next = model.tokenize(" there", false, false).unwrap();
    let alone: Vec<String> = (0..8).map(|seed| write(&mut prefix.fork().unwrap(), &next, seed)).collect();
    let together: Vec<String> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|seed| {
                let (mut session, next) = (prefix.fork().unwrap(), &next);
                scope.spawn(move || write(&mut session, next, seed))
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(together, alone);
    assert!(alone.iter().any(|text| *text != alone[0]));
    let panics = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        prefix.generate(&next, &Generate::default(), |_| panic!("heard enough"))
    }));
    assert!(panics.is_err());
}

#[test]
fn sessions_without_memory_are_told_and_may_wait() {
    let Some(path) = stories() else { return };
    let options = ModelOptions { context: 64, kv_positions: 64, ..ModelOptions::default() };
    let model = Model::open_with(&path, &options).unwrap();
    let (mut one, mut two) = (model.session().unwrap(), model.session().unwrap());
    one.append(&[1, 2]).unwrap();
    let error = two.append(&[1, 2]).unwrap_err();
    assert_eq!(error.status, 7, "{error}");
    two.wait_for_pages(Duration::MAX).unwrap();
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| two.append(&[1, 2]).map(<[f32]>::len));
        one.append(&[3]).unwrap();
        drop(one);
        assert_eq!(waits.join().unwrap().unwrap(), model.vocab_size());
    });
}

#[test]
fn kv_formats_are_chosen_and_refused() {
    let Some(path) = stories() else { return };
    for (kv, kv_residual, status) in [("", None, 0), ("f16", Some(0), 0), ("int5", None, 1), ("int4", Some(64), 3), ("a\0", None, 1)] {
        let options = ModelOptions { kv, kv_residual, context: 64, ..ModelOptions::default() };
        match Model::open_with(&path, &options) {
            Ok(_) => assert_eq!(status, 0, "{kv}"),
            Err(error) => assert_eq!(error.status, status, "{error}"),
        }
    }
    for (kv_refresh, kv_demote, says) in [(256, "", "--kv-refresh"), (0, "512:int2", "--kv-demote"), (0, "\0", "zero byte")] {
        let options = ModelOptions { kv_refresh, kv_demote, context: 64, ..ModelOptions::default() };  // of f16 pages
        let error = Model::open_with(&path, &options).err().expect(says);
        assert!(error.to_string().contains(says), "{error}");
    }
}

#[test]
fn calls_on_a_device_say_what_they_lack() {
    use lowbit::device::{self, Args};
    let mut args = device::BitlinearArgs::zeroed();
    (args.m, args.n, args.k) = (1, 16, 32);
    // No memory: refused before any device is asked for.
    let error = unsafe { device::bitlinear_int8xint2(args, std::ptr::null_mut()) }.unwrap_err();
    assert!(error.to_string().contains("wanted memory"), "{error}");
    let mut args = device::Fp8GroupedGemmArgs::zeroed();
    (args.m, args.n, args.k) = (1, 1, 1);
    assert!(unsafe { device::fp8_grouped_gemm(args, std::ptr::null_mut()) }.is_err());
}
