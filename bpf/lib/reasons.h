/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef WEFT_REASONS_H
#define WEFT_REASONS_H

/* Every way a packet can be refused. This list is the only one: the metrics' labels, the CLI's
 * text and docs/drop-reasons.md are generated from it. Add at the end: the numbers are ABI
 * between a running datapath and a newer agent.
 *
 * X(NAME, "what happened", "what to look at") */
#define WEFT_REASONS(X)                                                                            \
	X(NONE, "not dropped", "")                                                                 \
	X(INTERNAL, "an invariant of the datapath did not hold",                                   \
	  "report it with the output of weft sysdump")                                             \
	X(TRUNCATED, "a header reaches beyond the end of the frame",                               \
	  "the sender builds broken packets")                                                      \
	X(BAD_IP_HEADER, "IP version, header length or total length is wrong",                     \
	  "the sender builds broken packets")                                                      \
	X(BAD_IP_CHECKSUM, "the IPv4 header checksum is wrong",                                    \
	  "the sender or a link corrupts packets")                                                 \
	X(BAD_L4_HEADER, "the TCP or UDP header contradicts itself",                               \
	  "the sender builds broken packets")                                                      \
	X(SOURCE_ROUTE, "IPv4 source route option or IPv6 routing header type 0",                  \
	  "source routing is refused (RFC 7126, RFC 5095)")                                        \
	X(EXTENSION_HEADERS, "the IPv6 extension header chain is too long",                        \
	  "at most 6 headers and 320 bytes are followed")                                          \
	X(ETHERTYPE, "neither IPv4, IPv6 nor ARP", "pods have IP networking only")                 \
	X(VLAN_TAGGED, "a pod sent a frame with a VLAN tag", "pods have no VLANs; send untagged")  \
	X(SPOOFED_MAC, "the source MAC address is not the endpoint's",                             \
	  "something in the pod forges frames, or its MAC was changed")                            \
	X(SPOOFED_IP, "the source IP address is not the endpoint's",                               \
	  "something in the pod forges packets, or routes for others")                             \
	X(SPOOFED_ARP, "an ARP packet claims an address that is not the endpoint's",               \
	  "something in the pod forges ARP")                                                       \
	X(SPOOFED_ND, "a neighbour discovery packet claims an address that is not the endpoint's", \
	  "something in the pod forges ND")                                                        \
	X(ARP_TARGET, "ARP for another address than the gateway",                                  \
	  "pods reach everything through the gateway; check the pod's routes")                     \
	X(ND_TARGET, "neighbour solicitation for another address than the gateway",                \
	  "pods reach everything through the gateway; check the pod's routes")                     \
	X(MULTICAST, "multicast or broadcast from a pod", "the network carries unicast only")      \
	X(LINK_LOCAL, "a link-local address where a routable one is needed",                       \
	  "bind to the pod's own address")                                                         \
	X(UNKNOWN_INTERFACE, "the hook sits on an interface that no endpoint owns",                \
	  "an endpoint is being removed, or the agent must restore it")                            \
	X(NO_ENDPOINT, "the address is in this node's pod range but no endpoint has it",           \
	  "the pod is gone or not there yet")                                                      \
	X(FOREIGN_SOURCE,                                                                          \
	  "a packet from outside claims an address of this node or of one of its pods",            \
	  "somebody forges packets, or two nodes have the same pod range")                         \
	X(FRAGMENT_UNKNOWN, "a later fragment whose first fragment was not seen",                  \
	  "fragments were reordered or lost on the way")                                           \
	X(FRAGMENT_OVERLAP, "a fragment overlaps the first one",                                   \
	  "an attack (RFC 1858, RFC 5722) or a broken sender")                                     \
	X(FRAGMENT_TINY, "the first fragment ends inside the transport header",                    \
	  "an attack (RFC 1858) or a broken sender")                                               \
	X(TTL_EXCEEDED, "the TTL or hop limit ran out",                                            \
	  "a routing loop, or traceroute; the sender got an ICMP error")                           \
	X(TOO_BIG, "larger than the path's MTU",                                                   \
	  "the sender got an ICMP error with the right MTU")                                       \
	X(ICMP_NO_FLOW, "an ICMP error that belongs to no known flow", "late, or forged")          \
	X(ICMP_MISMATCH, "an ICMP error quotes a packet that did not travel between its two ends", \
	  "forged")                                                                                \
	X(MARTIAN, "a source address that no host can have on a wire",                             \
	  "forged, or a broken sender (RFC 6890)")                                                 \
	X(NO_KEY, "no key to seal with for that node yet",                                         \
	  "the agents have not met: see weft encrypt status on this node")                         \
	X(KEY_EXPIRED, "the epoch of the key is past its hard time to live",                       \
	  "the agent or its key manager has been away too long: see weft keys status")             \
	X(KEY_EXHAUSTED, "the key has sealed as many packets as it may",                           \
	  "the agent should have made a new epoch: see weft keys status")                          \
	X(SEAL_FAILED, "the cipher or the room for ESP's headers failed",                          \
	  "see the kernel's log and weft sysdump")                                                 \
	X(ESP_MALFORMED, "an ESP packet that is cut short or not well formed",                     \
	  "a link cuts packets, or somebody forges them")                                          \
	X(ESP_FRAGMENT, "a fragment of an ESP packet",                                             \
	  "the path's MTU is smaller than configured: weft encrypt status")                        \
	X(ESP_UNKNOWN_PEER, "ESP from an address that no node has",                                \
	  "forged, or that node's object is missing here")                                         \
	X(ESP_UNKNOWN_SA, "no key for this ESP packet's node, epoch and lane",                     \
	  "forged, or keys were destroyed on one side: see weft encrypt status on both")           \
	X(ESP_REPLAYED, "an ESP packet that has been seen, or is too old to tell",                 \
	  "replayed, or delayed on the way")                                                       \
	X(ESP_BAD_TAG, "the ESP packet does not verify",                                           \
	  "forged or damaged: it was not sealed with this key")                                    \
	X(ESP_PADDING, "the trailer of an ESP packet is wrong", "the sending stack is broken")     \
	X(INNER_SOURCE, "the packet inside does not come from a pod of the node that sealed it",   \
	  "that node forges packets, or two nodes have the same pod range")                        \
	X(IDENTITY_NOT_ON_NODE, "the sealing node hosts no pod of that identity",                  \
	  "that node lies, or its endpoint is not published yet")                                  \
	X(PLAINTEXT, "not sealed, though it must be",                                              \
	  "forged, or the sending node does not encrypt: see docs/encryption.md")                  \
	X(CHECKSUM_OFFSET, "asks the device to write a checksum over addresses or ports",          \
	  "something in the pod forges packets")                                                   \
	X(NO_NODE,                                                                                 \
	  "the address is in a range of the cluster whose Node object is missing or broken",       \
	  "correct or restore that node's object: see weft status")                                \
	X(UNHOOKED_INTERFACE, "would leave for another node by an interface that has no hooks",    \
	  "name the interface in uplinks, or route the node by an uplink: see weft status")        \
	X(NO_NEXT_HOP, "no route by an uplink leads to that node",                                 \
	  "see the node's problem in weft status")                                                 \
	X(VM_FORKED,                                                                               \
	  "the key dates from before this machine was resumed from a snapshot, or copied",         \
	  "the agents make new keys at once: see weft encrypt status")                             \
	X(ICMP_UNSEALED,                                                                           \
	  "an ICMP error from outside about a packet that travels sealed, or that hides which",    \
	  "forged: nobody between the two nodes can have seen that packet")                        \
	X(ND_OPTION, "a neighbour discovery option is malformed",                                  \
	  "the sender builds broken packets")                                                      \
	X(UNLISTED_SOURCE,                                                                         \
	  "this host sent to another node's pod from an address that its Node object lacks",       \
	  "add the address to the Node object, or bind to one that is there")                      \
	X(XDP_METADATA, "the driver cannot keep with a frame who sealed it, past the XDP hook",    \
	  "set mode auto or tc on this node")                                                      \
	X(ESP_MERGED, "several ESP packets in one that cannot be cut",                             \
	  "no current version says so; before: switch rx-udp-gro-forwarding and rx-gro-list off")  \
	X(NOT_FOR_SEALER, "sent to the interface weft_sealer by something else than Weft's hooks", \
	  "a process binds to weft_sealer or routes there")                                        \
	X(OTHER_NETWORK,                                                                           \
	  "would cross from one network to another, or leave its node in another than 0",          \
	  "pods of a network reach each other on their node only: docs/cni.md")                    \
	X(SEALER_QUEUE_FULL,                                                                       \
	  "weft_sealer's queue was full, or nobody read it: frames of one packet or many",         \
	  "more bulk than one CPU seals and opens, or a slow sealer: see weft encrypt status")     \
	X(POLICY_DENIED, "no network policy allows it, or one denies it",                          \
	  "the event names the rule, if one does")                                                 \
	X(IDENTITY_MISMATCH,                                                                       \
	  "sealed under another identity than the one that its source address has",                \
	  "that node forges it, or the address has just gone to another pod")                      \
	X(SEALER_SHARE, "as much of its pod as the pod's share already waits for the sealer",      \
	  "the pod sends more bulk than the sealer seals: see weft encrypt status")

#define WEFT_REASON_ENUM(name, what, hint) REASON_##name,
enum weft_reason { WEFT_REASONS(WEFT_REASON_ENUM) REASON_COUNT };

#endif
