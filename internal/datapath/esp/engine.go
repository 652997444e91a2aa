package esp

import (
	"errors"
	"fmt"

	"weft.dev/weft/internal/datapath/bpf"
)

// EngineUser is the engine by which a sealer takes what comes in bulk, whatever the host, and the
// hooks the rest, as with engine auto.
const EngineUser = "user"

// EngineStatus says what does the AES-GCM of SAs that are installed from now on, and why. Each SA
// keeps the one it was made for; both ends of one may differ.
type EngineStatus struct {
	Asked  string `json:"asked"`
	Active string `json:"active"`
	Why    string `json:"why"`
	// Sealer says that a sealer takes what comes in bulk, NoSealer why engine auto has none.
	Sealer   bool   `json:"sealer,omitempty"`
	NoSealer string `json:"noSealer,omitempty"`
	// AES is what engine bpf runs on; zero for another engine.
	AES AESStatus `json:"aes,omitzero"`
}

var errJumbo = errors.New("in mode xdp the module cannot take frames larger than a page, which the uplinks' MTU allows")

// choose picks the engine. The kernel says -ENOENT of a cipher that nobody has registered. The
// module works where the packet lies, and that must be linear: an skb can be made so, XDP's pieces
// cannot.
func (w *writer) choose(opts *Options, pieces bool) error {
	asked := opts.Engine
	if asked == "" {
		asked = "auto"
	}
	noBPF, kmod := w.probe(bpf.EngineBpf), w.probe(bpf.EngineKmod)
	if pieces && kmod == nil {
		kmod = errJumbo
	}
	w.status = EngineStatus{Asked: asked}
	switch {
	case asked != "auto" && asked != "bpf" && asked != "kmod" && asked != EngineUser:
		return fmt.Errorf("encryption.engine: %q: must be auto, bpf, kmod or user", asked)
	case asked == "kmod" && errors.Is(kmod, errJumbo):
		return fmt.Errorf("encryption.engine: kmod: %w: set engine auto or bpf, mode tc, or a smaller MTU on the uplinks", kmod)
	case asked == "kmod" && kmod != nil:
		return fmt.Errorf("encryption.engine: kmod: %w: load the module weft_crypto, or set auto",
			kmod)
	case asked != "bpf" && kmod == nil:
		w.engine, w.status.Why = bpf.EngineKmod, "the module weft_crypto is loaded"
	case noBPF != nil:
		return fmt.Errorf("encryption.engine: %s: the kernel gives BPF no AES: %w: a kernel with CONFIG_CRYPTO_ECB and CONFIG_CRYPTO_AES is needed, or the module weft_crypto", asked, noBPF)
	default:
		w.engine, w.status.Why = bpf.EngineBpf, "as configured"
		if asked == "auto" || asked == EngineUser {
			w.status.Why = fmt.Sprintf("the module weft_crypto is not loaded (%v)", kmod)
			if errors.Is(kmod, errJumbo) {
				w.status.Why = kmod.Error()
			}
		}
	}
	w.status.Active = bpf.EngineNames[w.engine]
	w.chooseSealer(opts)
	if w.engine != bpf.EngineBpf {
		return nil
	}
	aes, err := w.readAES(opts.AllowTableAES)
	if err != nil {
		return fmt.Errorf("encryption.engine: %s: %w", asked, err)
	}
	w.status.AES = aes
	// By its name, so that what was judged is what runs. One that is unknown to us has no name to
	// ask by.
	if aes.ConstantTime {
		w.aes = "ecb(" + aes.Driver + ")"
	}
	return nil
}

// chooseSealer decides whether there is a sealer. The module does without: it is as fast where the
// CPU has AES instructions, and nobody has measured which is better.
func (w *writer) chooseSealer(opts *Options) {
	switch {
	case w.status.Asked == EngineUser:
		w.status.Sealer = true
	case w.status.Asked != "auto":
	case w.engine == bpf.EngineKmod:
		w.status.NoSealer = "the module weft_crypto seals it"
	default:
		w.status.NoSealer = opts.NoSealer
		w.status.Sealer = opts.NoSealer == ""
	}
}

// cipher names the kernel's cipher for an engine, with a key that is not one.
func (r *saRequest) cipher(engine uint32) {
	*r = saRequest{KeyLen: 32, Engine: engine}
	if engine == bpf.EngineKmod {
		copy(r.Type[:], "aead")
		copy(r.Algo[:], "gcm(aes)/12") // 12 bytes of associated data
		r.AuthSize = 16
		return
	}
	copy(r.Type[:], "skcipher")
	copy(r.Algo[:], "ecb(aes)")
}

// named asks for one driver of the kernel's cipher.
func (r *saRequest) named(driver string) {
	r.Algo = [128]byte{}
	copy(r.Algo[:], driver)
}

func (w *writer) probe(engine uint32) error {
	w.request.cipher(engine)
	return w.run("weft_sa_probe")
}
