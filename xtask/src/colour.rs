//! Colour measures: contrast, and the perceived difference of two colours, also under colour blindness.
//!
//! They are three published measures: the contrast ratio of WCAG 2, the colour difference CIEDE2000, and the simulation
//! of Machado, Oliveira and Fernandes (2009) for eyes that lack one kind of cone entirely.

use anyhow::{Context, Result, ensure};

/// A colour in linear light, each component from 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Colour([f64; 3]);

/// A kind of colour vision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ColourVision {
    Normal,
    /// Without long-wave cones.
    Protan,
    /// Without medium-wave cones.
    Deutan,
    /// Without short-wave cones.
    Tritan,
}

impl ColourVision {
    pub(crate) const ALL: [Self; 4] = [Self::Normal, Self::Protan, Self::Deutan, Self::Tritan];

    /// Returns the matrix that maps linear light to the colour these eyes perceive (severity 1.0).
    const fn matrix(self) -> [[f64; 3]; 3] {
        match self {
            Self::Normal => [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]],
            Self::Protan => [
                [0.152_286, 1.052_583, -0.204_868],
                [0.114_503, 0.786_281, 0.099_216],
                [-0.003_882, -0.048_116, 1.051_998],
            ],
            Self::Deutan => [
                [0.367_322, 0.860_646, -0.227_968],
                [0.280_085, 0.672_501, 0.047_413],
                [-0.011_820, 0.042_940, 0.968_881],
            ],
            Self::Tritan => [
                [1.255_528, -0.076_749, -0.178_779],
                [-0.078_411, 0.930_809, 0.147_602],
                [0.004_733, 0.691_367, 0.303_900],
            ],
        }
    }
}

impl Colour {
    /// Parses `#rrggbb`.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let digits = text.strip_prefix('#').with_context(|| format!("{text} is not written as #rrggbb"))?;
        ensure!(digits.len() == 6 && digits.is_ascii(), "{text} is not written as #rrggbb");
        let part = |at: usize| -> Result<f64> {
            let value =
                u8::from_str_radix(&digits[at..at + 2], 16).with_context(|| format!("{text} is not hexadecimal"))?;
            let value = f64::from(value) / 255.0;
            Ok(if value <= 0.040_45 { value / 12.92 } else { ((value + 0.055) / 1.055).powf(2.4) })
        };
        Ok(Self([part(0)?, part(2)?, part(4)?]))
    }

    /// Returns the relative luminance, from 0 (black) to 1 (white).
    fn luminance(self) -> f64 {
        let [r, g, b] = self.0;
        0.2126 * r + 0.7152 * g + 0.0722 * b
    }

    /// Returns the contrast ratio of two colours, from 1 to 21, in either order.
    pub(crate) fn contrast(self, other: Self) -> f64 {
        let (a, b) = (self.luminance(), other.luminance());
        (a.max(b) + 0.05) / (a.min(b) + 0.05)
    }

    /// Returns the colour as eyes with this vision perceive it.
    pub(crate) fn seen_by(self, vision: ColourVision) -> Self {
        let [r, g, b] = self.0;
        Self(vision.matrix().map(|row| (row[0] * r + row[1] * g + row[2] * b).clamp(0.0, 1.0)))
    }

    /// Returns the colour in CIELAB under daylight (D65).
    fn lab(self) -> [f64; 3] {
        let [r, g, b] = self.0;
        let root = |t: f64| if t > (6.0_f64 / 29.0).powi(3) { t.cbrt() } else { t * 841.0 / 108.0 + 4.0 / 29.0 };
        let x = root((0.412_456_4 * r + 0.357_576_1 * g + 0.180_437_5 * b) / 0.950_47);
        let y = root(0.212_672_9 * r + 0.715_152_2 * g + 0.072_175_0 * b);
        let z = root((0.019_333_9 * r + 0.119_192_0 * g + 0.950_304_1 * b) / 1.088_83);
        [116.0 * y - 16.0, 500.0 * (x - y), 200.0 * (y - z)]
    }

    /// Returns the perceived difference (CIEDE2000): 1 is just noticeable side by side, 10 is obvious at a glance.
    pub(crate) fn difference(self, other: Self) -> f64 {
        lab_difference(self.lab(), other.lab())
    }
}

/// Returns the CIEDE2000 difference with all weights 1. The names are those of the formula's paper, without primes.
fn lab_difference(first: [f64; 3], second: [f64; 3]) -> f64 {
    let far = |c: f64| (c.powi(7) / (c.powi(7) + 25.0_f64.powi(7))).sqrt();
    let mean_chroma = f64::midpoint(first[1].hypot(first[2]), second[1].hypot(second[2]));
    let stretch = 1.0 + 0.5 * (1.0 - far(mean_chroma));
    let polar = |lab: [f64; 3]| {
        let a = lab[1] * stretch;
        (lab[0], a.hypot(lab[2]), lab[2].atan2(a).to_degrees().rem_euclid(360.0))
    };
    let (l1, c1, h1) = polar(first);
    let (l2, c2, h2) = polar(second);
    let grey = c1 * c2 == 0.0;

    // The shorter turn from one hue to the other. A grey has no hue.
    let turn = if grey { 0.0 } else { (h2 - h1 + 180.0).rem_euclid(360.0) - 180.0 };
    let delta_l = l2 - l1;
    let delta_c = c2 - c1;
    let delta_h = 2.0 * (c1 * c2).sqrt() * (turn / 2.0).to_radians().sin();

    let l = f64::midpoint(l1, l2);
    let c = f64::midpoint(c1, c2);
    let h = if grey { h1 + h2 } else { (h1 + turn / 2.0).rem_euclid(360.0) };
    let cos = |degrees: f64| degrees.to_radians().cos();
    let t = 1.0 - 0.17 * cos(h - 30.0) + 0.24 * cos(2.0 * h) + 0.32 * cos(3.0 * h + 6.0) - 0.20 * cos(4.0 * h - 63.0);
    let from_50 = (l - 50.0).powi(2);
    let weight_l = 1.0 + 0.015 * from_50 / (20.0 + from_50).sqrt();
    let weight_c = 1.0 + 0.045 * c;
    let weight_h = 1.0 + 0.015 * c * t;
    let blue = 30.0 * (-((h - 275.0) / 25.0).powi(2)).exp();
    let rotation = -2.0 * far(c) * (2.0 * blue).to_radians().sin();

    let (dl, dc, dh) = (delta_l / weight_l, delta_c / weight_c, delta_h / weight_h);
    (dl * dl + dc * dc + dh * dh + rotation * dc * dh).sqrt()
}

#[test]
fn contrast_matches_wcag() {
    let ratio = |a, b| Colour::parse(a).unwrap().contrast(Colour::parse(b).unwrap());
    assert!((ratio("#000000", "#ffffff") - 21.0).abs() < 1e-9);
    assert!((ratio("#ffffff", "#777777") - 4.48).abs() < 0.005);
    assert!(Colour::parse("red").is_err() && Colour::parse("#12345g").is_err());
}

/// Pairs from the test data that the authors of the formula published, chosen for its edge cases: the sign of the hue's
/// turn, hues on both sides of zero, a grey, and large distances.
#[test]
fn colour_differences_match_the_published_pairs() {
    for (first, second, expected) in [
        ([50.0, 2.6772, -79.7751], [50.0, 0.0, -82.7485], 2.0425),
        ([50.0, 0.0, 0.0], [50.0, -1.0, 2.0], 2.3669),
        ([50.0, 2.49, -0.001], [50.0, -2.49, 0.0009], 7.1792),
        ([50.0, 2.49, -0.001], [50.0, -2.49, 0.0011], 7.2195),
        ([50.0, 2.5, 0.0], [73.0, 25.0, -18.0], 27.1492),
        ([50.0, 2.5, 0.0], [58.0, 24.0, 15.0], 19.4535),
        ([60.2574, -34.0099, 36.2677], [60.4626, -34.1751, 39.4387], 1.2644),
        ([2.0776, 0.0795, -1.1350], [0.9033, -0.0636, -0.5514], 0.9082),
    ] {
        let found = lab_difference(first, second);
        assert!((found - expected).abs() < 1e-4, "{first:?} {second:?}: {found}, not {expected}");
    }
}
