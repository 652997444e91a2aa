package agent

import (
	"context"
	"errors"

	"weft.dev/weft/internal/datapath"
	"weft.dev/weft/internal/front/admin"
	"weft.dev/weft/internal/metrics"
	"weft.dev/weft/internal/sealer/control"
	"weft.dev/weft/internal/sealer/supervisor"
)

// runSealer keeps the sealer running, where the engine has one.
func (a *Agent) runSealer(ctx context.Context, running *node) {
	sas, err := running.dp.Associations()
	if err != nil || !sas.EngineStatus().Sealer {
		return
	}
	host, err := sealerHost(running.dp)
	if err != nil {
		a.problem("sealer", err)
		return
	}
	s := supervisor.New(supervisor.Options{
		Datapath: host, Socket: a.cfg.SealerSocket(), Port: uint16(a.cfg.Encryption.Port),
		Build:   control.Build(),
		Problem: func(err error) { a.problem("sealer", err) }, Log: a.log,
	})
	a.sealer.Store(s)
	a.keep(ctx, "sealer", s.Run)
}

func sealerHost(dp Datapath) (supervisor.Datapath, error) {
	sas, err := dp.Associations()
	if err != nil {
		return nil, err
	}
	host, hasTap := dp.(supervisor.Tap)
	keys, hasKeys := sas.(supervisor.Keys)
	if !hasTap || !hasKeys {
		return nil, errors.New("this datapath has no sealer")
	}
	return struct {
		supervisor.Tap
		supervisor.Keys
	}{host, keys}, nil
}

// describeSealer is nil where the engine has none.
func (a *Agent) describeSealer() *admin.Sealer {
	s := a.sealer.Load()
	if s == nil {
		return nil
	}
	status := s.Status()
	return &admin.Sealer{
		PID: status.PID, Version: status.Build, Started: status.Started, Starts: status.Starts,
		Sealed: sealerTraffic(status.Stats.Seal), Opened: sealerTraffic(status.Stats.Open),
		Refused: refusals(status.Stats), Lost: status.Lost,
	}
}

func sealerTraffic(d control.Direction) admin.SealerTraffic {
	return admin.SealerTraffic{Frames: d.FramesIn, Packets: d.Packets, Bytes: d.Bytes,
		WriteFailures: d.WriteFailures}
}

// refusals are the packets that the sealer could do nothing with, by reason; both directions.
func refusals(s control.Stats) map[string]uint64 {
	out := map[string]uint64{}
	for reason := range s.Seal.Refused {
		if n := s.Seal.Refused[reason] + s.Open.Refused[reason]; n > 0 {
			out[control.Reason(reason).String()] = n
		}
	}
	return out
}

// sealerMetrics is nil where the engine has none.
func (a *Agent) sealerMetrics() *metrics.Sealer {
	s := a.sealer.Load()
	if s == nil {
		return nil
	}
	status := s.Status()
	passed := func(d control.Direction) datapath.Traffic {
		return datapath.Traffic{Packets: d.Packets, Bytes: d.Bytes}
	}
	return &metrics.Sealer{
		Up: status.PID != 0, Starts: status.Starts, Sealed: passed(status.Stats.Seal),
		Opened: passed(status.Stats.Open),
	}
}
