package kernels

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"weft.dev/weft/test/kernels/tsc"
)

func TestMain(m *testing.M) {
	if inSnapshotGuest() {
		os.Exit(snapshotGuest())
	}
	os.Exit(m.Run())
}

// A generation ID, as a hypervisor gives it to a VM. Another boot of that VM has the same.
const generationID = "3f6b8d1e-52a7-4c0b-9e4d-7a1c2b3d4e5f"

// forkMessage is what Linux logs when it has been told of a fork.
const forkMessage = "random: crng reseeded due to virtual machine fork"

// TestSnapshotResumed takes a real virtual machine, with a lab of two nodes in it, back to a
// snapshot with memory, by QEMU's savevm and -loadvm. From the moment in which its kernel knows, no
// packet leaves with a key of before, although no agent runs; and when the agents run, packets
// leave with new keys at once.
//
// A pair of key and nonce that is used twice shows as the same ciphertext, since all packets carry
// the same text.
func TestSnapshotResumed(t *testing.T) {
	harness := snapshotHarness{t: t, kernel: os.Getenv("WEFT_SNAPSHOT_KERNEL"),
		initramfs: os.Getenv("WEFT_SNAPSHOT_INITRAMFS"), dir: t.TempDir()}
	if harness.kernel == "" || harness.initramfs == "" {
		t.Skip("needs QEMU and a kernel for it: `make test-kernels` has one for each series")
	}
	first := harness.original()
	t.Run("a new generation ID", func(t *testing.T) { harness.at(t).noticed(first) })
	t.Run("the same generation ID", func(t *testing.T) { harness.at(t).unnoticed(first) })
}

// original runs the VM, takes the snapshot, and lets it seal more packets. It returns all that it
// sealed.
func (b snapshotHarness) original() map[string]bool {
	b.t.Helper()
	disk, err := exec.Command("qemu-img", "create", "-q", "-f", "qcow2", b.disk(),
		"1G").CombinedOutput()
	if err != nil {
		b.t.Fatalf("make a disk for the snapshot: %v: %s", err, disk)
	}
	vm := b.start("original", generationID)
	told := vm.until("20 packets before the snapshot",
		func(s story) bool { return len(s.sealed) >= 20 })
	if told.detection != "fentry" {
		b.t.Errorf("forks are noticed by %q: want fentry, which Debian's kernels allow",
			told.detection)
	}
	vm.command("savevm weft")
	already := len(vm.story().sealed)
	told = vm.until("20 packets after the snapshot",
		func(s story) bool { return len(s.sealed) >= already+20 })
	vm.end()
	used := map[string]bool{}
	for _, p := range told.sealed {
		if used[p.text] {
			b.t.Errorf("SPI %s, IV %s: sealed twice before anything happened", p.spi, p.iv)
		}
		used[p.text] = true
	}
	return used
}

// noticed resumes the snapshot as hypervisors should: the VM gets a new ID, and its kernel is told.
func (b snapshotHarness) noticed(used map[string]bool) {
	vm := b.start("noticed", "auto", "-loadvm", "weft")
	told := vm.until("new keys", func(s story) bool {
		if len(s.sealed) > 200 && !s.forked {
			b.t.Fatalf("%d packets since the snapshot was resumed, and nobody has noticed; the kernel: %s", len(s.sealed), vm.console())
		}
		return s.done
	})
	vm.end()
	if !strings.Contains(vm.console(), forkMessage) {
		b.t.Errorf("the kernel's log does not have %q", forkMessage)
	}
	window, renewed := 0, 0
	for _, p := range told.sealed {
		switch {
		case p.generation == 0 && used[p.text]:
			window++
		case p.generation > 0 && used[p.text]:
			b.t.Errorf("SPI %s, IV %s: key and nonce were used before the snapshot was resumed, and again when the kernel knew", p.spi, p.iv)
		case p.generation > 0:
			renewed++
		}
	}
	if told.early > 0 {
		b.t.Errorf("%d packets sealed when the kernel knew and no agent did: want none", told.early)
	}
	if told.refused < refusals || told.dropped < uint64(refusals) {
		b.t.Errorf("%d datagrams came to nothing, %d counted as vm_forked: want %d", told.refused,
			told.dropped, refusals)
	}
	if renewed < fresh || told.received == 0 {
		b.t.Errorf("%d packets under new keys, %d datagrams received: want %d, and any", renewed,
			told.received, fresh)
	}
	b.t.Logf("%d packets repeated a nonce before the kernel was told, %d were refused, then %d left with new keys", window, told.refused, renewed)
}

// unnoticed resumes it in the way that nothing inside a VM can notice: docs/keys.md says so. That
// packets are repeated here shows that the other test would see it.
func (b snapshotHarness) unnoticed(used map[string]bool) {
	vm := b.start("unnoticed", generationID, "-loadvm", "weft")
	told := vm.until("20 packets", func(s story) bool { return len(s.sealed) >= 20 || s.done })
	vm.end()
	repeated := 0
	for _, p := range told.sealed {
		if used[p.text] {
			repeated++
		}
	}
	if repeated == 0 && !told.forked {
		b.t.Errorf("none of %d packets is one of before, and nobody noticed the fork: this test would not see a repetition", len(told.sealed))
	}
	b.t.Logf("the hypervisor told nobody: %d of %d packets repeat a nonce; noticed nevertheless: %v", repeated, len(told.sealed), told.forked)
}

// sealedPacket is a line of the guest's.
type sealedPacket struct {
	generation    int
	spi, iv, text string
}

// story is what a guest has told.
type story struct {
	detection             string
	sealed                []sealedPacket
	forked, resumed, done bool
	early, refused        int // after the fork and before the agents ran again
	dropped, received     uint64
}

// read adds a line. An error says that it is none of the guest's.
func (s *story) read(line string) error {
	word, rest, _ := strings.Cut(line, " ")
	var err error
	switch word {
	case "ready":
		s.detection = rest
	case "sealed":
		var p sealedPacket
		if _, err = fmt.Sscan(rest, &p.generation, &p.spi, &p.iv, &p.text); err == nil {
			s.sealed = append(s.sealed, p)
		}
		if s.forked && !s.resumed && p.generation > 0 {
			s.early++
		}
	case "silent":
		if s.forked && !s.resumed {
			s.refused++
		}
	case "noticed":
		s.forked = true
	case "resumed":
		s.resumed = true
	case "done":
		s.done = true
		_, err = fmt.Sscan(rest, &s.dropped, &s.received)
	default:
		err = fmt.Errorf("the guest says: %s", line)
	}
	return err
}

// snapshotHarness is where VMs run whose memory is the snapshot's.
type snapshotHarness struct {
	t                      testing.TB
	kernel, initramfs, dir string
}

func (b snapshotHarness) at(t testing.TB) snapshotHarness {
	b.t = t
	return b
}

func (b snapshotHarness) disk() string { return filepath.Join(b.dir, "snapshots.qcow2") }

// snapshotVM is a running QEMU.
type snapshotVM struct {
	t        testing.TB
	base     string // of its files' names
	process  *exec.Cmd
	says     bytes.Buffer
	ended    chan struct{}
	monitor  net.Conn
	answers  *json.Decoder
	resuming bool
}

// start starts QEMU with that generation ID. All else must be as it was for -loadvm.
func (b snapshotHarness) start(name, id string, arguments ...string) *snapshotVM {
	b.t.Helper()
	vm := &snapshotVM{t: b.t, base: filepath.Join(b.dir, name), ended: make(chan struct{}),
		resuming: len(arguments) > 0}
	vm.process = exec.Command("qemu-system-x86_64", append([]string{
		"-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2", "-m", "2G", "-nodefaults",
		"-no-user-config", "-display", "none", "-no-reboot",
		"-kernel", b.kernel, "-initrd", b.initramfs,
		// So loud that a fork is on the console: it is a notice. QEMU's translator gives the guest
		// this machine's TSC. What its rate is must be told: on a busy machine the guest would
		// measure it wrong by any factor.
		"-append",
		fmt.Sprintf("console=ttyS0 loglevel=6 panic=-1 mitigations=off tsc=reliable tsc_early_khz=%d no_timer_check", tsc.KHz()),
		"-serial", "file:" + vm.base + ".console", "-serial", "file:" + vm.base + ".output", "-qmp",
		"unix:" + vm.base + ".qmp,server=on,wait=off",
		"-device", "vmgenid,guid=" + id, "-drive",
		"if=none,id=snapshots,format=qcow2,file=" + b.disk(),
	}, arguments...)...)
	vm.process.Stdout, vm.process.Stderr = &vm.says, &vm.says
	vm.process.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	must(b.t, vm.process.Start())
	go func() { _ = vm.process.Wait(); close(vm.ended) }()
	b.t.Cleanup(vm.end)
	return vm
}

// end ends QEMU, also one that has ended.
func (vm *snapshotVM) end() {
	_ = vm.process.Process.Kill()
	<-vm.ended
	if vm.monitor != nil {
		vm.monitor.Close()
		vm.monitor = nil
	}
}

// until waits until the guest has told what is wanted.
func (vm *snapshotVM) until(what string, enough func(story) bool) story {
	vm.t.Helper()
	for deadline := time.Now().Add(2 * guestPatience); ; time.Sleep(200 * time.Millisecond) {
		s := vm.story()
		if enough(s) {
			return s
		}
		select {
		case <-vm.ended:
			vm.t.Fatalf("waiting for %s, QEMU ended: %s; the console:\n%s", what, vm.says.String(),
				vm.console())
		default:
		}
		if time.Now().After(deadline) {
			vm.t.Fatalf("no %s; the guest said %+v; the console:\n%s", what, s, vm.console())
		}
	}
}

// story reads all whole lines of the guest until now. One that was being written when the snapshot
// was taken ends in the file of the VM that goes on, as its first.
func (vm *snapshotVM) story() story {
	vm.t.Helper()
	text, _ := os.ReadFile(vm.base + ".output") // not there yet: nothing said
	whole := text[:bytes.LastIndexByte(text, '\n')+1]
	var s story
	first := true
	for line := range strings.Lines(string(whole)) {
		if err := s.read(strings.TrimSpace(line)); err != nil && !(first && vm.resuming) {
			vm.t.Fatalf("%v; the console:\n%s", err, vm.console())
		}
		first = false
	}
	return s
}

// console is the end of the kernel's log.
func (vm *snapshotVM) console() string {
	text, _ := os.ReadFile(vm.base + ".console")
	return string(text[max(0, len(text)-4000):])
}

// command has QEMU's monitor do something, and waits for it.
func (vm *snapshotVM) command(line string) {
	vm.t.Helper()
	if vm.monitor == nil {
		var err error
		vm.monitor, err = net.Dial("unix", vm.base+".qmp")
		must(vm.t, err)
		vm.answers = json.NewDecoder(vm.monitor)
		vm.ask(map[string]any{"execute": "qmp_capabilities"})
	}
	said := vm.ask(map[string]any{"execute": "human-monitor-command",
		"arguments": map[string]any{"command-line": line}})
	if text := strings.TrimSpace(fmt.Sprint(said)); text != "" { // it says something only when it cannot
		vm.t.Fatalf("QEMU's %s: %s", line, text)
	}
}

func (vm *snapshotVM) ask(question map[string]any) any {
	vm.t.Helper()
	must(vm.t, json.NewEncoder(vm.monitor).Encode(question))
	for {
		var answer map[string]any
		must(vm.t, vm.answers.Decode(&answer))
		if why, failed := answer["error"]; failed {
			vm.t.Fatalf("QEMU refuses %v: %v", question, why)
		}
		if said, answered := answer["return"]; answered { // else an event, or its greeting
			return said
		}
	}
}
