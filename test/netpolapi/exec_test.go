package netpolapi

import (
	"io"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/httpstream"
	"k8s.io/apimachinery/pkg/util/httpstream/spdy"
)

// serveExec answers an exec of a pod by a command's error output, over SPDY as a kubelet does
// (protocol v4.channel.k8s.io).
func serveExec(w http.ResponseWriter, r *http.Request, errorOutput string) {
	if _, err := httpstream.Handshake(r, w, []string{"v4.channel.k8s.io"}); err != nil {
		return
	}
	streams := make(chan httpstream.Stream, 3)
	conn := spdy.NewResponseUpgrader().UpgradeResponse(w, r,
		func(s httpstream.Stream, _ <-chan struct{}) error { streams <- s; return nil })
	if conn == nil {
		return // it has answered
	}
	defer conn.Close()
	var all []httpstream.Stream
	for len(all) < 3 { // error, stdout, stderr
		select {
		case s := <-streams:
			all = append(all, s)
		case <-time.After(10 * time.Second):
			return
		}
	}
	for _, s := range all {
		if s.Headers().Get(corev1.StreamType) == corev1.StreamTypeStderr {
			_, _ = io.WriteString(s, errorOutput)
		}
		_ = s.Close()
	}
	<-conn.CloseChan() // the client has read all
}
