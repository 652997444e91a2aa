package esp

import (
	"testing"

	"weft.dev/weft/internal/datapath/bpf"
)

// sealerSAs are an SA of each kind: the hooks' and the sealer's, both ways.
func sealerSAs(t *testing.T, b *saHarness) map[string]SealerKey {
	t.Helper()
	lane := uint8(b.hookLanes())
	sas := map[string]*SA{
		"the hooks', out": testSA(true, 11, 1), "the sealer's, out": testSA(true, 12, 2),
		"the hooks', in": testSA(false, 13, 3), "the sealer's, in": testSA(false, 14, 4),
	}
	sas["the sealer's, out"].Lane = lane
	sas["the sealer's, in"].Lane, sas["the sealer's, in"].Last = lane, true
	vm, err := b.readVM()
	must(t, err)
	keys := map[string]SealerKey{}
	for name, sa := range sas {
		sa.VMGeneration = vm.Generation
		keys[name] = SealerKey{Out: sa.Out, ID: saKey(1, 1, sa.Lane), Fingerprint: sa.ID,
			Key: sa.Key, Salt: sa.Salt}
		must(t, b.InstallSA(sa)) // which wipes it
	}
	return keys
}

// TestAdoptSealerKey: a new agent takes over what is the sealer's and nothing else, whatever the
// process says: fingerprints are public.
func TestAdoptSealerKey(t *testing.T) {
	for _, c := range []struct {
		of            string
		marked, known bool // known: this agent has installed the SA
		other         bool // fingerprint
		want          bool
	}{
		{of: "the sealer's, out", marked: true, want: true},
		{of: "the sealer's, out", want: true},
		{of: "the sealer's, out", marked: true, other: true},
		{of: "the sealer's, in", marked: true, want: true},
		{of: "the sealer's, in"},
		{of: "the sealer's, in", known: true, want: true},
		{of: "the sealer's, in", marked: true, other: true},
		{of: "the hooks', out"},
		{of: "the hooks', in"},
	} {
		b := newSABed(t, EngineUser)
		keys := sealerSAs(t, b)
		k := keys[c.of]
		if c.marked {
			must(t, b.MarkSealer(k, true))
		}
		b.mu.Lock()
		if !c.known { // as after the agent's end
			b.sealer.close()
		}
		b.mu.Unlock()
		if c.other {
			k.Fingerprint++
		}
		k.Key[0] ^= 1 // which the process could say
		got, err := b.AdoptSealerKey(&k)
		if err != nil || got != c.want {
			t.Errorf("%+v: %v, %v", c, got, err)
		}
		kept := SealerKey{Out: k.Out, ID: k.ID, Fingerprint: keys[c.of].Fingerprint}
		if c.known && (!b.SealerSecret(&kept) || kept.Key != keys[c.of].Key) {
			t.Errorf("%+v: the agent's own key is replaced", c)
		}
		if !c.known && b.SealerSecret(&kept) != c.want {
			t.Errorf("%+v: kept: %v", c, !c.want)
		}
	}
}

// TestUnmarkSealer: marks go, but for those of the keys named, fingerprint included.
func TestUnmarkSealer(t *testing.T) {
	b := newSABed(t, EngineUser)
	keys := sealerSAs(t, b)
	out, in := keys["the sealer's, out"], keys["the sealer's, in"]
	other := in
	other.Fingerprint++
	for _, c := range []struct {
		but     []SealerKey
		out, in bool
	}{
		{[]SealerKey{out, in}, true, true},
		{[]SealerKey{out}, true, false},
		{[]SealerKey{other}, false, false},
		{nil, false, false},
	} {
		must(t, b.MarkSealer(out, true))
		must(t, b.MarkSealer(in, true))
		must(t, b.UnmarkSealer(c.but...))
		for _, of := range []struct {
			key  SealerKey
			want bool
		}{{out, c.out}, {in, c.in}} {
			sa, err := b.readSA(of.key.Out, of.key.ID)
			must(t, err)
			if sa.sealer != of.want {
				t.Errorf("but %d: out %v is marked: %v", len(c.but), of.key.Out, sa.sealer)
			}
		}
	}
}

// TestWhoHasASealer: engine user always, auto unless the host or the module is against it, others
// never.
func TestWhoHasASealer(t *testing.T) {
	for _, c := range []struct {
		asked  string
		engine uint32
		why    string // Options.NoSealer
		sealer bool
		no     string
	}{
		{EngineUser, bpf.EngineBpf, "", true, ""},
		{EngineUser, bpf.EngineKmod, "one CPU", true, ""},
		{"auto", bpf.EngineBpf, "", true, ""},
		{"auto", bpf.EngineBpf, "one CPU", false, "one CPU"},
		{"auto", bpf.EngineKmod, "", false, "the module weft_crypto seals it"},
		{"bpf", bpf.EngineBpf, "", false, ""},
		{"kmod", bpf.EngineKmod, "", false, ""},
	} {
		w := writer{engine: c.engine, status: EngineStatus{Asked: c.asked}}
		w.chooseSealer(&Options{Engine: c.asked, NoSealer: c.why})
		if w.status.Sealer != c.sealer || w.status.NoSealer != c.no {
			t.Errorf("%s by engine %d, %q: %+v", c.asked, c.engine, c.why, w.status)
		}
	}
}
