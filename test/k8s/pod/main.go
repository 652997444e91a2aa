// Command pod is all that is in the image that the pods of test/k8s/cluster run: what holds a
// sandbox, an echo server with a page for probes, and what asks that server.
package main

import (
	"bytes"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"weft.dev/weft/internal/echo"
)

// The ports of serve: the echo server's, TCP and UDP, and that of the page.
const (
	echoPort = 7000
	pagePort = 8080
)

func main() {
	what := "pause"
	if len(os.Args) > 1 {
		what = os.Args[1]
	}
	var err error
	switch what {
	case "pause":
	case "serve":
		err = serve()
	case "check":
		err = check()
	default:
		err = fmt.Errorf("%s is none of pause, serve and check", what)
	}
	if err != nil {
		log.Fatal(err)
	}
	if what != "check" {
		ended := make(chan os.Signal, 1)
		signal.Notify(ended, syscall.SIGTERM, syscall.SIGINT)
		<-ended
	}
}

// serve begins to answer, on both families.
func serve() error {
	tcp, err := net.ListenTCP("tcp", &net.TCPAddr{Port: echoPort})
	if err != nil {
		return err
	}
	udp, err := net.ListenUDP("udp", &net.UDPAddr{Port: echoPort})
	if err != nil {
		return err
	}
	echo.Serve(tcp, udp, 0)
	page, err := net.Listen("tcp", fmt.Sprintf(":%d", pagePort))
	if err != nil {
		return err
	}
	name, err := os.Hostname()
	go func() {
		log.Fatal(http.Serve(page, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprintln(w, name)
		})))
	}()
	return err
}

// check asks the echo server of its own pod.
func check() error {
	conn, err := net.DialTimeout("tcp", fmt.Sprintf("127.0.0.1:%d", echoPort), 5*time.Second)
	if err != nil {
		return err
	}
	defer conn.Close()
	said, heard := []byte("are you there?"), make([]byte, 14)
	if err := conn.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return err
	}
	if _, err := conn.Write(said); err != nil {
		return err
	}
	if _, err := io.ReadFull(conn, heard); err != nil {
		return err
	}
	if !bytes.Equal(said, heard) {
		return fmt.Errorf("the echo of %q is %q", said, heard)
	}
	return nil
}
