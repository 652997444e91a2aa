package preflight

import "time"

// clock has to be right for certificates and for the end of keys, and nodes' clocks have to be the
// same.
func (l *look) clock() Check {
	now, built := l.Now(), l.Built()
	stamp := now.UTC().Format(time.RFC3339)
	switch {
	case now.Before(built):
		return failed("set it, and run an NTP client",
			"it is %s, before this program was built (%s)", stamp, built.UTC().Format(time.RFC3339))
	case !l.Synchronised():
		return warned("run an NTP client (chrony, systemd-timesyncd): certificates and keys end by the clock",
			"%s, and nothing keeps it right", stamp)
	}
	return ok("%s, synchronised", stamp)
}

func (l *look) certificate() Check {
	if err := l.Certificate(l.ctx, l.cfg); err != nil {
		return failed("see docs/node-certificates.md: `weft ca join` gets one", "%v", err)
	}
	return ok("this node's, and peers will take it")
}

func (l *look) kek() Check {
	if err := l.KEK(l.ctx, l.cfg); err != nil {
		return failed("see docs/kms: `weft keys init` makes a file on the first node", "%v", err)
	}
	return ok("%s; `weft keys check` tries it", l.cfg.Keys.KEK)
}
