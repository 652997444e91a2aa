package inet

// protocolNames are those of the IP protocols that flows and policies name.
var protocolNames = map[uint8]string{1: "icmp", 4: "ipip", 6: "tcp", 17: "udp", 41: "ipv6",
	47: "gre", 50: "esp", 58: "icmpv6", 132: "sctp", 136: "udplite"}

// ProtocolName is the name of an IP protocol, "" where it has none here.
func ProtocolName(number uint8) string { return protocolNames[number] }

// ProtocolNumber is the IP protocol of a name in lower case.
func ProtocolNumber(name string) (number uint8, known bool) {
	for number, n := range protocolNames {
		if n == name {
			return number, true
		}
	}
	return 0, false
}
