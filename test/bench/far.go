package main

import (
	"fmt"
	"io"
	"net"
	"net/url"
	"time"

	"k8s.io/client-go/tools/clientcmd"
)

// oneWay is the latency of the connection between an administrator and a distant cluster, in one direction.
const oneWay = 20 * time.Millisecond

// farAway writes a kubeconfig to file that reaches the API server of another kubeconfig over a connection
// with the latency oneWay.
func farAway(kubeconfig, file string) (stop func() error, err error) {
	config, err := clientcmd.LoadFromFile(kubeconfig)
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	cluster := config.Clusters[config.Contexts[config.CurrentContext].Cluster]
	server, err := url.Parse(cluster.Server)
	if err != nil {
		return nil, fmt.Errorf("server of %s: %w", kubeconfig, err)
	}
	go func() {
		for {
			near, err := listener.Accept()
			if err != nil {
				return
			}
			go delayed(near, server.Host)
		}
	}()
	cluster.Server = "https://" + listener.Addr().String()
	return listener.Close, clientcmd.WriteToFile(*config, file)
}

// delayed passes bytes between a connection and a server until one of them closes it.
func delayed(near net.Conn, server string) {
	defer near.Close()
	there, err := net.Dial("tcp", server)
	if err != nil {
		return
	}
	defer there.Close()
	ended := make(chan struct{}, 2)
	for _, way := range [][2]net.Conn{{near, there}, {there, near}} {
		go func() {
			travel(way[0], way[1])
			ended <- struct{}{}
		}()
	}
	<-ended
}

// travel copies bytes, each one oneWay after it was read. The channel bounds the bytes in flight, like the
// window of a real connection.
func travel(from io.Reader, to io.Writer) {
	type packet struct {
		bytes []byte
		due   time.Time
	}
	underWay := make(chan packet, 1024)
	go func() {
		defer close(underWay)
		for {
			buffer := make([]byte, 16<<10)
			n, err := from.Read(buffer)
			if n > 0 {
				underWay <- packet{buffer[:n], time.Now().Add(oneWay)}
			}
			if err != nil {
				return
			}
		}
	}()
	for p := range underWay {
		time.Sleep(time.Until(p.due))
		if _, err := to.Write(p.bytes); err != nil {
			break
		}
	}
	for range underWay { //nolint:revive // The reader ends when its connection is closed.
	}
}
