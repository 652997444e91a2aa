package esp

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/datapath/bpf"
	"weft.dev/weft/internal/datapath/hook"
)

// fork is what the kernel's half does: it counts, and nothing else has happened yet.
func (b *saHarness) forkVM(t *testing.T) {
	t.Helper()
	must(t, b.countFork(func(*bpf.Vm) bool { return true }))
}

func (b *saHarness) generation(t *testing.T) uint64 {
	t.Helper()
	generation, err := b.VMGeneration()
	must(t, err)
	return generation
}

// TestVMForkVoidsKeys: no packet is sealed or opened with keys of before a fork, not by SAs that
// were there and not by ones that were agreed on before and are installed after it; the agent
// destroys them, and new ones work.
func TestVMForkVoidsKeys(t *testing.T) {
	forEachEngine(t, func(t *testing.T, b *saHarness) {
		before := b.generation(t)
		for _, out := range []bool{true, false} {
			for lane := range uint8(2) {
				sa := testSA(out, 7, 1)
				sa.Lane, sa.VMGeneration = lane, before
				must(t, b.InstallSA(sa))
			}
		}
		must(t, b.SealWith("b", 1))
		if n, reason := b.take(t, firstSA); n != 1 || reason != 0 {
			t.Fatalf("before: number %d, %s", n, reason)
		}
		b.forkVM(t)
		if n, reason := b.take(t, firstSA); n != 0 || reason != bpf.ReasonVmForked {
			t.Errorf("sealing after a fork: number %d, %s", n, reason)
		}
		if n, reason := b.admit(t, firstSA, 1); n != 0 || reason != bpf.ReasonVmForked {
			t.Errorf("opening after a fork: number %d, %s", n, reason)
		}
		late := testSA(true, 8, 2)
		late.Epoch, late.VMGeneration = 2, before
		if err := b.InstallSA(late); !errors.Is(err, ErrVMForked) {
			t.Errorf("keys that were agreed on before: %v", err)
		}
		if late.Key != [32]byte{} {
			t.Error("refused keys were not zeroed")
		}
		if n, err := b.retireForked(); n != 4 || err != nil {
			t.Errorf("destroyed %d, %v", n, err)
		}
		if list, err := b.SAs(); err != nil || len(list) != 0 {
			t.Errorf("%d SAs are left, %v", len(list), err)
		}
		if _, reason := b.take(t, firstSA); reason != bpf.ReasonNoKey {
			t.Errorf("after they were destroyed: %s", reason)
		}
		var peer bpf.Peer
		if must(t, b.maps.Peers.Lookup(uint32(1), &peer)); peer.Epoch != 0 {
			t.Errorf("sealing goes on with epoch %d", peer.Epoch)
		}
		again := testSA(true, 7, 1)
		again.VMGeneration = b.generation(t)
		if err := b.InstallSA(again); !errors.Is(err, ErrKeyUsed) {
			t.Errorf("the same keys again: %v", err)
		}
		fresh := testSA(true, 9, 3)
		fresh.VMGeneration = b.generation(t)
		must(t, b.InstallSA(fresh))
		if n, reason := b.take(t, firstSA); n != 1 || reason != 0 {
			t.Errorf("new keys: number %d, %s", n, reason)
		}
	})
}

// logPipe is a kernel's log whose records the test writes.
func logPipe(t *testing.T) (log *kernelLog, write func(string)) {
	t.Helper()
	var fds [2]int
	must(t,
		unix.Pipe2(fds[:],
			unix.O_DIRECT|unix.O_CLOEXEC|unix.O_NONBLOCK)) // each write is read as one
	log = &kernelLog{os.NewFile(uintptr(fds[0]), "log")}
	t.Cleanup(func() { log.Close(); unix.Close(fds[1]) })
	return log, func(record string) {
		_, err := unix.Write(fds[1], []byte(record))
		must(t, err)
	}
}

// TestVMForkLogged notices forks by the kernel's log: those of before this agent too, each once.
func TestVMForkLogged(t *testing.T) {
	b := newSABed(t, "auto")
	must(t, b.maps.VM.Put(uint32(0), &bpf.Vm{}))
	t.Cleanup(func() { must(t, b.maps.VM.Put(uint32(0), &bpf.Vm{})) })
	log, write := logPipe(t)
	for _, record := range []string{
		"6,338,1502000,-;something else\n",
		"5,339,1502718,-;random: crng reseeded due to virtual machine fork\n",
		"12,340,1600000,-;random: crng reseeded due to virtual machine fork\n", // user space's
		"5,341,1700000,-;random: crng reseeded due to virtual machine fork?\n",
	} {
		write(record)
	}
	seq, err := log.history()
	if err != nil || seq != 339 {
		t.Fatalf("history: record %d, %v", seq, err)
	}
	must(t, b.countLogged(seq))
	if n := b.generation(t); n != 0 {
		t.Errorf("generation %d: keys in a new map are of after what was logged", n)
	}
	sa := testSA(true, 7, 1)
	must(t, b.InstallSA(sa))
	must(t, b.countLogged(seq)) // another agent starts
	if n := b.generation(t); n != 0 {
		t.Errorf("generation %d: counted twice", n)
	}
	b.fork = vmFork{log: log}
	defer func() { b.fork = vmFork{} }()
	ctx, cancel := context.WithCancel(t.Context())
	forked, ended := make(chan struct{}, 4), make(chan error, 1)
	go func() { ended <- b.VMForks(ctx, func() { forked <- struct{}{} }) }()
	write("5,350,99502718,-;random: crng reseeded due to virtual machine fork\n SUBSYSTEM=x\n")
	select {
	case <-forked:
	case <-time.After(30 * time.Second):
		t.Fatal("a logged fork was not noticed")
	}
	if list, err := b.SAs(); err != nil || len(list) != 0 || b.generation(t) != 1 {
		t.Errorf("%d SAs are left, generation %d, %v", len(list), b.generation(t), err)
	}
	cancel()
	must(t, <-ended)
}

// TestKernelLogHere reads this machine's own log to its end and waits for more.
func TestKernelLogHere(t *testing.T) {
	log, err := openKernelLog(kernelLogPath)
	if err != nil {
		t.Skipf("needs the kernel's log: %v", err)
	}
	defer log.Close()
	seq, err := log.history()
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- log.follow(ctx, func(uint64) error { return nil }) }()
	cancel()
	must(t, <-ended)
	t.Logf("the last fork that it knows of is record %d", seq)
}

// TestVMForkTraced attaches the program to the kernel's function, and again as the next agent does.
func TestVMForkTraced(t *testing.T) {
	b := newSABed(t, "auto")
	if os.Getenv("WEFT_VM") != "" {
		_ = exec.Command("modprobe", "vmgenid").Run()
	}
	if why := noVMGenerationID(); why != "" {
		if os.Getenv("WEFT_VM") != "" {
			t.Fatal(why)
		}
		t.Skip(why)
	}
	b.host.PinDir = filepath.Join("/sys/fs/bpf",
		"weft-test-vmfork-"+strings.ReplaceAll(t.Name(), "/", "-"))
	must(t, os.MkdirAll(b.host.PinDir, 0o700))
	t.Cleanup(func() {
		must(t, hook.Detach(filepath.Join(b.host.PinDir, ForkPin)))
		must(t, os.Remove(b.host.PinDir))
		b.host.PinDir = ""
	})
	for range 2 {
		must(t, b.openVMFork())
		t.Logf("%+v", b.VMForkStatus())
		s := b.VMForkStatus()
		if os.Getenv("WEFT_VM") != "" && s.Detection != VMForkFentry {
			t.Errorf("Debian's kernels let it be traced, and it is not: %+v", s)
		}
		if s.Detection != VMForkFentry && s.Detection != VMForkLog {
			t.Errorf("a generation ID is there, and forks are noticed by %+v", s)
		}
		b.fork.close()
	}
	b.fork = vmFork{}
}
