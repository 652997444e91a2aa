package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"weft.dev/weft/internal/lab"
	"weft.dev/weft/internal/netns"
)

// podForgesMetadata has a pod on the XDP datapath put metadata in front of what it sends, as a hook
// in XDP leaves it for tag_in: its second interface's hook is in TC, which does not touch that, and
// gives the packet to the first interface behind its hook in XDP. The packet is of no flow, so it
// goes through the host's stack, and is sealed there.
func podForgesMetadata(t *testing.T, l *lab.Lab) {
	router, server := addRouter(t, l), l.Pod("server")
	leave := "eth0" // in most modes, an ordinary hook's
	if hasSecond(router) {
		leave = "weft-tx"
	}
	must(t, router.NetNS, "ip", "link", "add", "in0", "type", "veth", "peer", "name", "in1")
	t.Cleanup(func() { must(t, router.NetNS, "ip", "link", "del", "in0") })
	must(t, router.NetNS, "ip", "link", "set", "in0", "up")
	must(t, router.NetNS, "ip", "link", "set", "in1", "up")
	out := indexIn(t, router.NetNS, leave)
	runTCX(t, router.NetNS, "in0", ebpf.AttachTCXIngress, asm.Instructions{
		asm.Mov.Imm(asm.R1, int32(out)), asm.Mov.Imm(asm.R2, 0), asm.FnRedirect.Call(),
		asm.Return(),
	})
	end, sniff := openEnd(t, router.NetNS, "in1", false), openEnd(t, server.NetNS, "eth0", false)
	for i, tag := range forgedTags[:3] {
		t.Run(fmt.Sprintf("%#x", tag), func(t *testing.T) {
			runMetadata(t, router.NetNS, "in0", uint32(tag)<<16|0x5745)
			for _, family := range []int{4, 6} {
				marker := fmt.Sprintf("metadata %d, IPv%d, of the middle of a connection", i,
					family)
				end.send(t, segment(router, server, family, uint16(1000+i), marker))
				eventually(t, "the packet arrives", func() error {
					for _, frame := range sniff.received() {
						if bytes.Contains(frame, []byte(marker)) {
							return nil
						}
					}
					return errors.New("nothing arrived")
				})
			}
		})
	}
}

// segment is a frame with a TCP segment in the middle of a connection.
func segment(from, to *lab.Pod, family int, port uint16, payload string) []byte {
	tcp := &layers.TCP{SrcPort: layers.TCPPort(port), DstPort: 9, Seq: 1000, Ack: 1000, ACK: true,
		PSH: true, Window: 1000}
	src, dst := from.Addr(family), to.Addr(family)
	if family == 4 {
		ip := &layers.IPv4{Version: 4, TTL: 64, Protocol: layers.IPProtocolTCP,
			SrcIP: src.AsSlice(), DstIP: dst.AsSlice()}
		_ = tcp.SetNetworkLayerForChecksum(ip)
		return ground(ethernet(mac(from.MAC), gatewayMAC, layers.EthernetTypeIPv4), ip, tcp,
			gopacket.Payload(payload))
	}
	ip := &layers.IPv6{Version: 6, HopLimit: 64, NextHeader: layers.IPProtocolTCP,
		SrcIP: src.AsSlice(), DstIP: dst.AsSlice()}
	_ = tcp.SetNetworkLayerForChecksum(ip)
	return ground(ethernet(mac(from.MAC), gatewayMAC, layers.EthernetTypeIPv6), ip, tcp,
		gopacket.Payload(payload))
}

// runMetadata has an interface put four bytes of metadata in front of every frame that it gets.
func runMetadata(t *testing.T, ns, ifName string, value uint32) {
	t.Helper()
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "forge_meta", Type: ebpf.XDP,
		License: "GPL", Instructions: asm.Instructions{
			asm.Mov.Reg(asm.R6, asm.R1), asm.Mov.Imm(asm.R2, -4), asm.FnXdpAdjustMeta.Call(),
			asm.JNE.Imm(asm.R0, 0, "drop"),
			asm.LoadMem(asm.R1, asm.R6, 8, asm.Word), asm.LoadMem(asm.R2, asm.R6, 0, asm.Word),
			asm.Mov.Reg(asm.R3, asm.R1), asm.Add.Imm(asm.R3, 4),
			asm.JGT.Reg(asm.R3, asm.R2, "drop"),
			asm.Mov.Imm(asm.R4, int32(value)), asm.StoreMem(asm.R1, 0, asm.R4, asm.Word),
			asm.Mov.Imm(asm.R0, 2), asm.Return(),
			asm.Mov.Imm(asm.R0, 1).WithSymbol("drop"), asm.Return(),
		}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { program.Close() })
	index := indexIn(t, ns, ifName)
	err = netns.Do(ns, func() error {
		attached, err := link.AttachXDP(link.XDPOptions{Program: program, Interface: index,
			Flags: link.XDPDriverMode})
		if err == nil {
			t.Cleanup(func() { attached.Close() })
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
